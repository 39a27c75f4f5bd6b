"""orch data: the prompts that cells train on."""

from collections.abc import Sequence
from pathlib import Path

import click

from orchestrator.cli import common
from orchestrator.cli.common import print_json, print_table, say
from orchestrator.data import prepared, source
from orchestrator.errors import OrchError
from orchestrator.library.prompt_recipe import FORMATS
from orchestrator.settings import Data
from orchestrator.spec.expand import expand
from orchestrator.spec.load import load
from orchestrator.spec.shipped import shipped_folder

OWN_GROUP = Path("experiments/data")


@click.group(short_help="Prepare the prompts that cells train on.")
def command() -> None:
    """Prompts are prepared once for each data set, and shared by every cell that trains on them."""


@command.command(short_help="Write the prompts of data sets, as each library reads them.")
@click.argument("names", nargs=-1, required=True, metavar="NAME|SPEC...")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder to write to. Default: $ORCH_DATA_DIR, else data/prepared.",
)
@common.as_json
def prepare(names: Sequence[str], directory: Path | None, as_json: bool) -> int:
    """Prepare the data set NAME (an entry of the config group `data`), or all data sets of a SPEC.

    An entry is looked for in experiments/data; where there is none, in the group that orch brings.
    The data come from the Hub (through `datasets`) or from a local file, or are generated
    (Countdown). The command checks sizes, columns and answers. It does not write again what is
    already complete.
    """
    group = OWN_GROUP if OWN_GROUP.is_dir() else shipped_folder() / "data"
    where = (directory or prepared.data_dir()).absolute()
    rows: list[dict[str, object]] = []
    faults = []
    for data in dict.fromkeys(data for name in names for data in declared(name, group)):
        say(f"{data.name}: {data.path} ...")
        try:
            made = prepared.prepare(data, tuple(FORMATS), where)
        except OrchError as error:
            faults.append(str(error))
            continue
        if made.num_shared:
            say(
                f"{data.name}: {made.num_shared} of its {made.num_validation} validation prompts "
                "are training prompts too: an accuracy on them is no held-out one"
            )
        rows.append(
            {
                "name": data.name,
                "num_prompts": made.num_prompts,
                "num_validation": made.num_validation,
                "state": "prepared" if made.fresh else "was there",
                "folder": str(made.folder),
            }
        )
    if as_json:
        print_json(rows)
    elif rows:
        titles = ("data", "prompts", "validation", "", "folder")
        print_table(titles, [tuple(row.values()) for row in rows])
    click.echo("\n".join(faults), err=True, nl=bool(faults))
    return min(len(faults), 1)


def declared(name: str, group: Path) -> list[Data]:
    """Return the data of an entry of the group, or of every cell of a spec.

    Raise SelectionError if neither exists.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        cells = expand(load(path))
        wanted = [(cell.declared or cell.settings).data for cell in cells]
        return [data for data in wanted if not data.path.startswith("micro:")]
    return [source.entry(name, group)]
