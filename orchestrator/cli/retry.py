"""orch retry: let failed and cancelled cells run again."""

import click

from orchestrator.cli import options
from orchestrator.cli.changes import change


@click.command(short_help="Make failed and cancelled cells run again.")
@options.spec
@options.overrides
@options.where
@options.as_json
def command(spec: str, overrides: tuple[str, ...], where: tuple[str, ...], as_json: bool) -> None:
    """Make failed and cancelled cells eligible again: the next `orch run` goes on with them, from
    their last checkpoint if they have one.
    """
    from orchestrator.operations import retry

    change(retry, "will run again", spec, overrides, where, as_json)
