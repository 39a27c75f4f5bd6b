"""orch cancel: stop cells, and keep the others from starting."""

import click

from orchestrator.cli import options
from orchestrator.cli.changes import change


@click.command(short_help="Stop cells, and leave them alone until a retry.")
@options.spec
@options.overrides
@options.where
@options.as_json
def command(spec: str, overrides: tuple[str, ...], where: tuple[str, ...], as_json: bool) -> None:
    """Stop the chosen cells. What they trained is kept; `orch retry` lets them run again.

    Cells that have succeeded or failed are left as they are.
    """
    from orchestrator.operations import cancel

    change(cancel, "cancelled", spec, overrides, where, as_json)
