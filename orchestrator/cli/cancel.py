"""orch cancel: stop cells, and keep the others from starting."""

import click

from orchestrator.cli import common
from orchestrator.cli.common import change
from orchestrator.runs.operations import cancel


@click.command(short_help="Stop cells, and leave them alone until a retry.")
@common.spec
@common.overrides
@common.where
@common.as_json
def command(spec: str, overrides: tuple[str, ...], where: tuple[str, ...], as_json: bool) -> None:
    """Stop the chosen cells. What they trained is kept; `orch retry` lets them run again.

    Cells that have succeeded or failed are left as they are.
    """

    change(cancel, "cancelled", spec, overrides, where, as_json)
