"""orch list: the specs and config groups that orch brings."""

import click

from orchestrator.cli import common
from orchestrator.cli.common import print_json, print_table
from orchestrator.cli.manners import set_next
from orchestrator.spec.compose import GROUPS, group_names
from orchestrator.spec.shipped import shipped_folder, shipped_names
from orchestrator.spec.yaml_file import read


@click.command(short_help="The experiments and config groups that orch brings.")
@common.as_json
def command(as_json: bool) -> int:
    """List the shipped specs, the question that each answers, and the config groups.

    Commands take a name in place of a file: orch plan comedy_full, orch run smoke. `orch init
    --from NAME` writes a copy that you can change. A spec uses an entry of a group by its name:
    recipe: rehearsal.
    """
    folder = shipped_folder()
    specs = {name: _question(name) for name in shipped_names()}
    groups = {group: group_names(folder, group) for group in GROUPS}
    if as_json:
        print_json({"specs": specs, "groups": groups})
        return 0
    print_table(("experiment", "question"), specs.items())
    click.echo()
    print_table(("group", "entries"), [(g, ", ".join(names)) for g, names in groups.items()])
    set_next("orch plan NAME, orch run NAME, or orch init --from NAME")
    return 0


def _question(name: str) -> str:
    """Return the question of a shipped spec."""
    document = read(shipped_folder() / f"{name}.yaml", [])
    return str(document.data.get("question", "")) if document is not None else ""
