"""orch retry: let failed and cancelled cells run again."""

import click

from orchestrator.cli import common
from orchestrator.cli.common import change
from orchestrator.runs.operations import retry


@click.command(short_help="Make failed and cancelled cells run again.")
@common.spec
@common.overrides
@common.where
@common.as_json
def command(spec: str, overrides: tuple[str, ...], where: tuple[str, ...], as_json: bool) -> None:
    """Make failed and cancelled cells eligible again: the next `orch run` goes on with them, from
    their last checkpoint if they have one.
    """

    change(retry, "will run again", spec, overrides, where, as_json)
