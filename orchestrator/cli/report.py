"""orch report: what a reviewer reads, what a notebook loads, what MLflow shows, and SQL."""

from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, cast

import click

from orchestrator.analysis.results import write_tables
from orchestrator.cli import common
from orchestrator.cli.common import CellChoice, print_json, say
from orchestrator.environments.extras import missing
from orchestrator.errors import EnvironmentFault
from orchestrator.pipeline import stages
from orchestrator.report import markdown as as_markdown


@click.command()
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
    type=click.Choice(["html", "md", "csv", "parquet", "mlflow"]),
    default="html",
    show_default=True,
    help="html: index.html (self-contained) and report.md, and MLflow. md: Markdown on stdout, "
    "for a pull request. csv, parquet: finals, curves and scores, a row a value. mlflow: MLflow "
    "alone.",
)
@click.option(
    "--figures/--no-figures",
    default=True,
    show_default=True,
    help="With html: write each figure also as PNG and PDF.",
)
@click.option("--no-mlflow", is_flag=True, help="With html: leave MLflow as it is.")
@common.as_json
def command(
    choice: CellChoice,
    output: Path | None,
    kind: str,
    figures: bool,
    no_mlflow: bool,
    as_json: bool,
) -> int:
    """Write the report from the results on disk, print the paths of its files, and copy what
    MLflow does not have yet. Running it twice changes nothing in MLflow.

    Exit code 1: a file could not be read; all others were.
    """
    if kind == "mlflow":
        everything = stages.read_results(choice.experiment())
        done = stages.mirror(
            everything.experiment, everything.records, everything.index.scores, quiet=as_json
        )
        if as_json:
            print_json(asdict(done))
        return stages.print_faults(everything.records)
    results = stages.read_results(choice.chosen())
    target = output or results.experiment.folder.report
    shown: dict[str, object] = {"format": kind, "written": []}
    code = stages.print_faults(results.records)
    if kind == "md":
        shown["markdown"] = as_markdown(stages.build_report(results, target))
        if not as_json:
            click.echo(shown["markdown"], nl=False)
    elif kind in ("csv", "parquet"):
        form = cast("Literal['csv', 'parquet']", kind)
        written = list(write_tables(target, form, results.records, results.index.scores))
        shown["written"] = list(map(str, written))
        if not as_json:
            click.echo("\n".join(map(str, written)))
    else:
        page = stages.write_report(
            results,
            target,
            figures=figures,
            on_page=lambda path: None if as_json else click.echo(path),
        )
        shown["written"] = [str(page)]
        if not no_mlflow:
            if choice.where:  # MLflow has all cells
                results = stages.read_results(choice.experiment())
            shown["mlflow"], failed = _mirrored(results, quiet=as_json)
            code = max(code, failed)
    if as_json:
        print_json(shown)
    return code


def _mirrored(results: stages.Results, *, quiet: bool) -> tuple[dict[str, object] | None, int]:
    """Copy to MLflow, or say why not: the page is written all the same. Return what was done, and
    the exit code."""
    if find_spec("mlflow") is None:
        say(f"nothing is copied to MLflow: {missing('mlflow')}")
        return None, 0
    try:
        done = stages.mirror(results.experiment, results.records, results.index.scores, quiet=quiet)
    except EnvironmentFault as fault:
        say(str(fault))
        return None, 1
    return asdict(done), 0
