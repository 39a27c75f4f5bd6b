"""orch collect: run directories into MLflow."""

from dataclasses import asdict

import click

from orchestrator.cli import common
from orchestrator.cli.common import CellChoice, foreseen, print_json
from orchestrator.pipeline import stages


@click.command(short_help="Copy the results on disk to MLflow.")
@common.cells
@common.dry_run
@common.as_json
def command(choice: CellChoice, dry_run: bool, as_json: bool) -> int:
    """Copy the results on disk to MLflow. To run it twice changes nothing.

    Exit code 1: a file could not be read; all others were copied.
    """

    experiment = choice.experiment()
    only = {cell.id for cell in experiment.chosen(choice.where).cells}
    records = stages.collect_records(experiment)
    scores = stages.read_scores(experiment)
    done = stages.mirror(
        experiment,
        records,
        scores,
        only if choice.where else None,
        quiet=as_json,
        dry_run=dry_run,
    )
    if as_json:
        print_json(asdict(done))
    code = stages.print_faults([r for r in records if r.cell.id in only])
    changes = done.created + done.updated + done.deleted
    return max(code, foreseen(bool(changes))) if dry_run else code
