"""Options and output of commands about runs and launches that are not orch's own.

This is not in `common`, because importing the audit and the comparison takes as long as a whole
plan of 1,000 cells.
"""

from collections.abc import Sequence

import click

from orchestrator.analysis.imported import APART, imported_data
from orchestrator.audit.libraries import marks
from orchestrator.cli.common import number, print_table
from orchestrator.errors import did_you_mean
from orchestrator.imports.runs import ImportedRun


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


def pinned_releases(pinned: Sequence[str]) -> dict[str, str]:
    """Return library -> release of `--library NAME@VERSION`s, with the reason after a blank.

    Raise click.UsageError for another text.
    """
    if not pinned:
        return {}

    names = [name for library, mark in marks().items() for name in (library, *mark.aliases)]
    releases = {}
    for each in pinned:
        name, at, version = each.partition("@")
        if not at or not version[:1].isdigit():
            raise click.UsageError(
                f"--library takes NAME@VERSION, such as {next(iter(names))}@0.3.0, "
                f"got '{each}': give both"
            )
        name = name.lower()
        if name not in names:
            raise click.UsageError(
                f"--library knows {', '.join(names)}, got '{name}'{did_you_mean(name, names)}"
            )
        releases[name] = f"{version} --library says so"
    return releases
