"""orch import: runs that orch did not launch, beside an experiment's cells."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from orchestrator.analysis.imported import APART, imported_data, labelled_facts
from orchestrator.cli import common
from orchestrator.cli.common import number, print_json, print_table, say
from orchestrator.cli.conventions import set_next
from orchestrator.errors import SelectionError, did_you_mean
from orchestrator.imports.readers import FORMATS, open_source
from orchestrator.imports.runs import (
    ImportedRun,
    import_runs,
    manifest_filter,
    read_imported,
    remove,
    renames_of,
)
from orchestrator.runs.experiment import Experiment, open_experiment

_OVERRIDE = re.compile(r"^[+~]{0,2}[A-Za-z_][\w.@/]*=")


@click.command(
    name="import", short_help="Import runs of other launches: TensorBoard, MLflow, logs."
)
@common.spec
@click.argument("overrides", nargs=-1, metavar="[SOURCE|KEY=VALUE]...", type=click.Path())
@click.option(
    "--library",
    metavar="NAME[@VERSION]",
    help="The library that trained the runs: trl@1.16.0. Default: inferred from settings and "
    "metric names.",
)
@click.option("--name", help="The name of the run. Default: the name in its logger.")
@click.option("--run", "runs", multiple=True, metavar="NAME", help="Only this run of the source.")
@click.option("--experiment", metavar="NAME", help="Only this experiment of an MLflow store.")
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="THEIRS=OURS",
    help="Give a logged metric a canonical name.",
)
@click.option("--remove", "removed", metavar="NAME", help="Forget an imported run.")
@click.option(
    "-w",
    "--where",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Only runs for which this holds, of what is listed or read: library=trl, ended=finished, "
    "'!format=mlflow'. May be given several times; all must hold.",
)
@common.dry_run
@common.as_json
def command(
    spec: str,
    overrides: tuple[str, ...],
    library: str | None,
    name: str | None,
    runs: tuple[str, ...],
    experiment: str | None,
    metrics: tuple[str, ...],
    removed: str | None,
    where: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> int:
    """Import runs that orch did not launch: compare and report show them beside SPEC's cells.

    A SOURCE is a history as JSON lines (W&B's `run.history()`), a TensorBoard folder, a
    trainer_state.json, the console of a trainer, or the address of an MLflow store.
    Nothing is trained, and SOURCE is not changed. Without a SOURCE, the command lists what is
    imported.

    \b
      orch import smoke outputs/checkpoint-200
      orch import smoke sqlite:///mlflow.db --experiment grpo --library trl@1.16.0
      orch import smoke history.jsonl --metric my/score=train/reward_mean
    """
    sources, changes = _split(overrides)
    renames = renames_of(metrics)
    opened = open_experiment(spec, changes)
    if removed is not None:
        return _remove(opened, removed, dry_run=dry_run)
    keeps = manifest_filter(where)
    if not sources:
        return _list([run for run in read_imported(opened.folder) if keeps(run.manifest)], as_json)
    logged = [
        run for each in sources for run in open_source(each, experiment=experiment, runs=runs)
    ]
    imported = []
    for run, change in import_runs(
        opened.folder, logged, library, renames, name or "", keeps, dry_run=dry_run
    ):
        would = "would be " if dry_run and change != "unchanged" else ""
        say(f"{would}{change}: {run.name} ({len(run.rows)} rows, {run.manifest.format})")
        imported.append(run)
    if as_json:
        print_json(imported_data(imported))
    else:
        for run in imported:
            click.echo(f"\n{run.name}")
            for label, text in labelled_facts(run):
                click.echo(common.hanging(label, text))
    typed = shlex.join([spec, *changes]).replace("{", "{{").replace("}", "}}")
    set_next(f"orch compare {typed}")  # without the sources, which compare does not take
    return 0


def _split(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return sources and overrides: `site=local` is an override unless a file has that name."""
    overrides = [w for w in words if _OVERRIDE.match(w) and not Path(w).exists()]
    return tuple(w for w in words if w not in overrides), tuple(overrides)


def _remove(experiment: Experiment, name: str, *, dry_run: bool) -> int:
    names = [run.name for run in read_imported(experiment.folder)]
    if dry_run and name in names:
        say(f"{name} would be removed from {experiment.folder.path}")
        return 0
    if not remove(experiment.folder, name):
        raise SelectionError(
            f"no imported run is called '{name}'{did_you_mean(name, names)} "
            f"(there are: {', '.join(names) or 'none'})"
        )
    say(f"{name} is removed from {experiment.folder.path}; its source is as it was")
    return 0


def _list(imported: Sequence[ImportedRun], as_json: bool) -> int:
    if as_json:
        print_json(imported_data(imported))
        return 0
    if not imported:
        say(f"no such run is imported; orch import reads {FORMATS}")
        return 0
    print_imported(imported)
    return 0


def print_imported(runs: Sequence[ImportedRun], metric: str | None = None) -> None:
    """Print the imported runs as a table: origin, KL, objective, last values."""
    shown = [metric] if metric else ["train/reward_mean", *_kl_metrics(runs)]
    rows = []
    for run, one in zip(runs, imported_data(runs), strict=True):
        rows.append(
            (
                run.name,
                run.trained_with,
                one["kl"] or "unknown",
                "-" if one["beta"] is None else f"{one['beta']:g}",
                one["verdict"] or "unknown",
                *(number(run.finals.get(each)) for each in shown),
                run.last_step,
                run.manifest.ended,
                run.manifest.origin,
            )
        )
    columns = (
        "imported run",
        "library",
        "KL",
        "beta",
        "optimises",
        *shown,
        "step",
        "ended",
        "from",
    )
    print_table(columns, rows)
    click.echo(APART)


def _kl_metrics(runs: Sequence[ImportedRun]) -> list[str]:
    names = ("train/kl_term", "train/kl_reference", "train/kl_reference_per_token")
    return [name for name in names if any(name in run.finals for run in runs)]
