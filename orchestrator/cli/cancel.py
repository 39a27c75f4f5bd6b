"""orch cancel: stop cells, and keep the others from starting."""

import click

from orchestrator.cli import common
from orchestrator.cli.common import CellChoice, CellOperation, change
from orchestrator.runs.operations import cancel


@click.command()
@common.cells
@common.pilot
@common.dry_run
@common.as_json
def command(choice: CellChoice, pilot: bool, dry_run: bool, as_json: bool) -> int:
    """Stop the chosen cells. What they trained is kept; `orch retry` lets them run again.

    Cells that have succeeded or failed do not change.
    """
    operation = CellOperation(cancel, "cancelled", "would be cancelled")
    return change(operation, choice._replace(pilot=pilot), as_json=as_json, dry_run=dry_run)
