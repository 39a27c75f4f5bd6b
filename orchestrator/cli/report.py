"""orch report: what a reviewer reads, and what a notebook loads."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, cast

import click

from orchestrator.analysis.results import write_tables
from orchestrator.cli import common
from orchestrator.cli.common import CellChoice, print_json
from orchestrator.imports.runs import read_imported
from orchestrator.pipeline import stages


@click.command(short_help="Write the report: a page, Markdown, CSV or Parquet.")
@common.cells
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
    help="With html: write each figure also as PNG and PDF.",
)
@click.option(
    "--against",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="The runs folder of an earlier run of SPEC: the page shows what changed.",
)
@common.as_json
def command(
    choice: CellChoice,
    output: Path | None,
    kind: str,
    figures: bool,
    against: Path | None,
    as_json: bool,
) -> int:
    """Write the report from the results on disk. Print the paths of the files, or the Markdown."""

    def show(written: Sequence[Path], markdown: str = "") -> None:
        if as_json:
            data: dict[str, object] = {"format": kind, "written": list(map(str, written))}
            print_json(data | ({"markdown": markdown} if markdown else {}))
        for path in () if as_json else written:
            click.echo(path)
        if markdown and not as_json:
            click.echo(markdown, nl=False)

    experiment = choice.chosen()
    records = stages.collect_records(experiment)
    known = stages.scores_and_faults(experiment)
    scores = known.scores
    if kind in ("csv", "parquet"):
        folder = output or experiment.folder.report
        others = read_imported(experiment.folder)
        form = cast("Literal['csv', 'parquet']", kind)
        show(list(write_tables(folder, form, records, scores, others)))
        return stages.print_faults(records)
    comparison = stages.compare_records(experiment, records, scores, known.items)
    if kind == "md":
        text = stages.report_as_markdown(experiment, comparison, records, scores, known.faults)
        show([], text)
    else:
        changes = [] if against is None else [stages.changes_since(experiment, comparison, against)]
        page = stages.write_report(
            experiment,
            comparison,
            records,
            scores,
            output,
            faults=known.faults,
            figures=figures,
            sections=changes,
        )
        show([page])
    return stages.print_faults(records)
