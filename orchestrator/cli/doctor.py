"""orch doctor: what this machine offers, and what to fix."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli import common
from orchestrator.cli.common import print_json, print_table
from orchestrator.records import EvaluationSpec, Site
from orchestrator.runs.experiment import at_scale
from orchestrator.site.findings import machine_findings
from orchestrator.spec import load
from orchestrator.spec.expand import expand
from orchestrator.spec.select import selected
from orchestrator.spec.site_options import read_site

if TYPE_CHECKING:
    from orchestrator.records import Cell


@click.command(short_help="Check this machine and say what to fix.")
@click.argument("spec", required=False, metavar="[SPEC]")
@common.overrides
@common.where
@click.option(
    "--site",
    "site_file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="A site file to check, instead of the spec's.",
)
@click.option("--no-probe", is_flag=True, help="Ask the cluster only, and start no job on a node.")
@common.as_json
@common.runs_dir
def command(
    spec: str | None,
    overrides: tuple[str, ...],
    where: tuple[str, ...],
    site_file: Path | None,
    no_probe: bool,
    as_json: bool,
    runs_dir: Path,
) -> int:
    """Check Python, packages, the embedded trainer, the runs folder, MLflow and SLURM.

    With SPEC or --site FILE, orch asks its cluster whether it has what the cells need. A job of
    a few seconds checks that a node sees the runs folder, orch, and the environments of the
    libraries. Exit code 1: something that `orch run` needs does not work.
    """
    site, cells, evaluation = _site_and_cells(spec, overrides, where, site_file, runs_dir)

    findings = machine_findings(site, cells, evaluation, look=not no_probe)
    if as_json:
        print_json([f._asdict() for f in findings])
    else:
        print_table(("check", "", "found", "what to do"), findings)
    return int(any(f.verdict == "broken" for f in findings))


def _site_and_cells(
    spec: str | None,
    overrides: tuple[str, ...],
    where: tuple[str, ...],
    site_file: Path | None,
    runs_dir: Path,
) -> "tuple[Site, Sequence[Cell], EvaluationSpec | None]":
    """Return the site, and the cells that are to run there with their evaluation."""
    if spec is None and (overrides or where):
        raise click.UsageError("KEY=VALUE and --where are about a spec: name one")
    cells: Sequence[Cell] = ()
    evaluation = None
    site = Site(runs_dir=str(runs_dir))
    if spec is not None:
        loaded = load(Path(spec), overrides)
        evaluation = loaded.evaluation
        site, cells = loaded.site, selected(expand(loaded), where, spec)
        if site.kind == "local":  # a rehearsal: nothing of full size is needed
            cells, evaluation = at_scale(cells, "micro"), None
    if site_file is not None:
        site = read_site(site_file)
        if "runs_dir" not in site.model_fields_set:
            site = site.model_copy(update={"runs_dir": str(runs_dir)})
    return site, cells, evaluation
