"""orch schema: the JSON Schema of spec files, for editors and other tools."""

import click

from orchestrator.cli import common
from orchestrator.cli.common import print_json
from orchestrator.spec import schema


@click.command(short_help="Print the JSON Schema of spec files.")
@common.as_json
def command(as_json: bool) -> None:  # noqa: ARG001 - JSON is all it prints
    """Print the JSON Schema (draft 2020-12) of spec files, with or without --json.

    Editors complete and check specs with it:  orch schema > spec.schema.json
    """

    print_json(schema())
