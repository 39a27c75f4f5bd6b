"""orch plan: what would run, why, what it costs, and what each KL term really optimises."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from orchestrator.cli import common
from orchestrator.cli.common import MICRO_BANNER, print_json, print_table, say
from orchestrator.runs.experiment import Experiment

if TYPE_CHECKING:
    from orchestrator.runs.cost import Cost
    from orchestrator.runs.plan import Plan, PlanRow


@click.command(short_help="What would run, why, and what its KL term really optimises.")
@common.spec
@common.overrides
@common.where
@common.as_json
def command(spec: str, overrides: tuple[str, ...], where: tuple[str, ...], as_json: bool) -> int:
    """Show what `orch run` would do, without doing it: needs no GPU, cluster or trainer.

    Exits 0 when nothing would run, 2 when something would, 1 on a mistake.
    """
    from orchestrator.runs.experiment import open_experiment
    from orchestrator.runs.plan import plan

    whole = open_experiment(spec, overrides)
    made = plan(whole.cells, whole.folder)
    experiment = whole.chosen(where)
    if where:
        made = made.only({cell.id for cell in experiment.cells})
    _check_translations(made)
    if as_json:
        print_json(_plain(experiment, made))
    else:
        if experiment.scale == "micro":
            say(MICRO_BANNER)
        print_plan(experiment, made)
    return 2 if made.pending else 0


def print_plan(experiment: Experiment, made: "Plan") -> None:
    """Print studies, configurations with their verdicts, reasons, and the cost."""
    from orchestrator.runs.cost import bill, measure
    from orchestrator.spec.expand import how

    spec = experiment.spec
    click.echo(f"{spec.name}: {spec.question}\n" if spec.question else f"{spec.name}\n")
    formulas = how(spec)
    print_table(
        ("study", "of the paper", "cells"),
        [(s.name, s.figure, formulas.get(s.name, "")) for s in spec.studies],
    )
    if len(experiment.cells) < len(experiment.declared):
        click.echo(f"\n{len(experiment.declared)} declared cells are {len(experiment.cells)} here.")
    click.echo()
    print_table(
        ("study", "where", "KL", "cells", "what would happen", "what the KL term optimises"),
        _configurations(made.rows),
    )
    _print_details(made.rows)
    for fault in made.faults:
        say(fault)
    counts = ", ".join(f"{count} {reason}" for reason, count in made.counts().items())
    click.echo(f"\n{len(experiment.cells)} cells: {counts or 'none'}")
    left = [row.cell for row in made.pending if row.cell is not None]
    click.echo(f"still to spend: {bill(left, measure(made.rows))}" if left else "nothing to do")
    if experiment.scale == "micro" and experiment.declared:
        click.echo(f"the same grid on its cluster, as declared: {bill(experiment.declared)}")


def _configurations(rows: Iterable["PlanRow"]) -> list[tuple[object, ...]]:
    """Print one line for cells that differ only in their seed."""
    from orchestrator.spec.rehearse import verdict_on

    groups: dict[tuple[str, ...], list[PlanRow]] = {}
    for row in rows:
        if row.cell is None:
            continue
        axes = {k: v for k, v in row.cell.axes.items() if k != "seed"}
        kl, beta = axes.pop("kl", ""), axes.pop("beta", "0")
        label = kl if kl == "none" else f"{kl} beta={beta}"
        where = " ".join(
            f"{k}={v}" if k not in _PLAIN_AXES else v for k, v in _released(axes).items()
        )
        groups.setdefault(("+".join(row.cell.studies), where, label), []).append(row)
    return [
        (*key, len(same), _reasons(same), verdict_on(same[0].cell.settings).summary)
        for key, same in groups.items()
        if same[0].cell is not None
    ]


_PLAIN_AXES = ("model", "data", "backend")


def _released(axes: Mapping[str, str]) -> Mapping[str, str]:
    """Return the axes with each library's release beside its name, where both vary."""
    names, releases = (axes.get(k, "").split(" | ") for k in ("backend", "backend.version"))
    if len(names) != len(releases) or releases == [""]:
        return axes
    both = [n if r == "none" else f"{n}@{r}" for n, r in zip(names, releases, strict=True)]
    left = {k: v for k, v in axes.items() if k != "backend.version"}
    return {**left, "backend": " | ".join(both)}


def _reasons(rows: Sequence["PlanRow"]) -> str:
    reasons = [row.reason for row in rows]
    return ", ".join(
        reason if len(set(reasons)) == 1 else f"{reasons.count(reason)} {reason}"
        for reason in dict.fromkeys(reasons)
    )


def _print_details(rows: Iterable["PlanRow"], most: int = 20) -> None:
    """Print why cells are not simply new or unchanged, one by one."""
    told = [row for row in rows if row.detail and row.reason not in ("new", "unchanged")]
    if told:
        click.echo()
    for row in told[:most]:
        click.echo(f"{row.reason}  {row.directory.path.name}: {row.detail}")
    if len(told) > most:
        click.echo(f"... and {len(told) - most} more (--json lists all)")


def _check_translations(made: "Plan") -> None:
    """Raise, with all of them, for cells that would run and cannot be expressed."""
    from orchestrator import plugins
    from orchestrator.errors import OrchError
    from orchestrator.rundir import AttemptDir

    refused: dict[str, list[str]] = {}
    for row in made.pending:
        if row.cell is None:
            continue
        first = AttemptDir(row.directory.path / "attempts" / "1", 1)
        try:
            backend = plugins.load(row.cell.settings.backend.name)
            backend.translate(row.cell, row.directory.paths(first))
        except OrchError as error:
            refused.setdefault(str(error), []).append(row.cell.slug)
    if refused:
        count = sum(map(len, refused.values()))
        lines = [f"  {error}\n    {_some(slugs)}" for error, slugs in refused.items()]
        raise OrchError("\n".join([f"{count} cells cannot be launched", *lines]))


def _some(slugs: Sequence[str], most: int = 4) -> str:
    more = f" and {len(slugs) - most} more" if len(slugs) > most else ""
    return ", ".join(slugs[:most]) + more


def _plain(experiment: Experiment, made: "Plan") -> dict[str, object]:
    from orchestrator.runs.cost import bill, cost, measure

    measured = measure(made.rows)
    pending = [row.cell for row in made.pending if row.cell is not None]
    return {
        "experiment": experiment.folder.experiment,
        "scale": experiment.scale,
        "declared": len(experiment.declared),
        "counts": made.counts(),
        "pending": len(made.pending),
        "still_to_spend": bill(pending, measured)._asdict(),
        "cells": [
            _plain_row(row, cost(row.cell, measured) if row.cell else None) for row in made.rows
        ],
    }


def _plain_row(row: "PlanRow", price: "Cost | None") -> dict[str, object]:
    from orchestrator.spec.rehearse import verdict_on

    told: dict[str, object] = {
        "id": row.directory.id,
        "slug": row.directory.slug,
        "state": row.state,
        "reason": row.reason,
        "detail": row.detail,
        "changes": [change._asdict() for change in row.changes],
    }
    if row.cell is None or price is None:
        return told
    verdict = verdict_on(row.cell.settings)
    return told | {
        "studies": row.cell.studies,
        "axes": row.cell.axes,
        "objective": verdict.objective.value,
        "verdict": verdict.summary,
        "cost": price._asdict(),
    }
