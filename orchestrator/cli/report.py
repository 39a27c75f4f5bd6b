"""orch report: what a reviewer reads, and what a notebook loads."""

from pathlib import Path
from typing import Literal, cast

import click

from orchestrator.cli import common, stages


@click.command(short_help="Write the report: a page, Markdown, CSV or Parquet.")
@common.spec
@common.overrides
@common.where
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Folder to write to; default: report/ in the experiment's folder.",
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["html", "md", "csv", "parquet"]),
    default="html",
    show_default=True,
    help="html: index.html (self-contained) and report.md. md: Markdown on stdout, for a "
    "pull request. csv, parquet: finals, curves and scores, a row a value.",
)
@click.option(
    "--figures/--no-figures",
    default=True,
    show_default=True,
    help="With html: each figure as PNG and PDF beside the page.",
)
def command(
    spec: str,
    overrides: tuple[str, ...],
    where: tuple[str, ...],
    output: Path | None,
    kind: str,
    figures: bool,
) -> int:
    """Write the report from what is on disk. Prints the paths written, or the Markdown."""
    from orchestrator.runs.experiment import open_experiment

    experiment = open_experiment(spec, overrides).chosen(where)
    records = stages.gather(experiment)
    known = stages.known(experiment)
    scores = known.scores
    if kind in ("csv", "parquet"):
        from orchestrator.analysis.results import write_tables

        folder = output or experiment.folder.report
        for path in write_tables(folder, cast("Literal['csv', 'parquet']", kind), records, scores):
            click.echo(path)
        return stages.tell_faults(records)
    comparison = stages.contrast(experiment, records, scores, known.items)
    if kind == "md":
        click.echo(
            stages.markdown_of(experiment, comparison, records, scores, known.faults), nl=False
        )
    else:
        click.echo(
            stages.write_report(
                experiment,
                comparison,
                records,
                scores,
                output,
                faults=known.faults,
                figures=figures,
            )
        )
    return stages.tell_faults(records)
