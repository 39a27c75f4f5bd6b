"""Output of commands about runs that orch did not launch.

This is not in `common`, because importing the comparison takes as long as a plan of many cells.
"""

from collections.abc import Sequence

import click

from orchestrator.analysis.imported import APART, imported_data
from orchestrator.cli.common import number, print_table
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
