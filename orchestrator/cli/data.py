"""orch data: the prompts that cells train on."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from orchestrator import plugins
from orchestrator.cli import common
from orchestrator.cli.common import print_json, print_table, say
from orchestrator.data import prepared
from orchestrator.errors import Fault, OrchError, SelectionError, SpecError, did_you_mean
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
    "--for",
    "libraries",
    multiple=True,
    metavar="LIBRARY[@VERSION]",
    default=("all",),
    show_default=True,
    help="Write only this library's format. May be given several times.",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder to write to. Default: $ORCH_DATA_DIR, else data/prepared.",
)
@click.option(
    "--data-group",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="The folder in which NAME is looked for. Default: experiments/data; where there is none, "
    "the one that orch brings.",
)
@common.as_json
def prepare(
    names: Sequence[str],
    libraries: Sequence[str],
    directory: Path | None,
    data_group: Path | None,
    as_json: bool,
) -> int:
    """Prepare the data set NAME (an entry of the config group `data`), or all data sets of a SPEC.

    The data come from the Hub (through `datasets`) or from a local file, or are generated
    (Countdown). The command checks sizes, columns and answers. It does not write again what is
    already complete.
    """
    chosen = formats(libraries)
    group = data_group or OWN_GROUP
    if data_group is None and not group.is_dir():
        group = shipped_folder() / "data"
    where = (directory or prepared.data_dir()).absolute()
    prepared_rows, faults = [], []
    for data in _unique(data for name in names for data in declared(name, group)):
        say(f"{data.name}: {data.path} ...")
        try:
            prepared_rows.append((data, prepared.prepare(data, chosen, where)))
        except OrchError as error:
            faults.append(str(error))
    rows = [
        (
            data.name,
            m.num_prompts,
            m.num_validation,
            ", ".join(m.formats),
            "prepared" if m.fresh else "was there",
            m.folder,
        )
        for data, m in prepared_rows
    ]
    if as_json:
        names_of = ("name", "num_prompts", "num_validation", "formats", "state", "folder")
        print_json([dict(zip(names_of, row, strict=True)) for row in rows])
    elif rows:
        print_table(("data", "prompts", "validation", "formats", "", "folder"), rows)
    if faults:
        raise OrchError("\n".join(faults))
    return 0


def formats(libraries: Iterable[str]) -> tuple[str, ...]:
    """Return the formats of libraries given as `name`, `name@version` or `all`.

    Raise SelectionError for a release that orch does not drive, or a library with its own prompts.
    """
    names: list[str] = []
    for library in libraries:
        name, _, version = library.partition("@")
        if library == "all":
            return tuple(FORMATS)
        backend = plugins.load(name)
        if version and version not in backend.versions:
            raise SelectionError(
                f"{name} {version} is not a release orch drives; it drives "
                f"{', '.join(backend.versions)}"
            )
        if backend.prompts_format is None:
            raise SelectionError(f"{name} brings its own prompts: there is nothing to prepare")
        names.append(backend.prompts_format)
    return tuple(dict.fromkeys(names))


def declared(name: str, group: Path) -> list[Data]:
    """Return the data of an entry of the group, or of every cell of a spec.

    Raise SelectionError if neither exists.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        cells = expand(load(path))
        wanted = [(cell.declared or cell.settings).data for cell in cells]
        return [data for data in wanted if not data.path.startswith("micro:")]
    return [_entry(name, group)]


def _entry(name: str, group: Path) -> Data:
    import yaml
    from pydantic import ValidationError

    file = group / f"{name}.yaml"
    if not file.is_file():
        known = sorted(path.stem for path in group.glob("*.yaml"))
        raise SelectionError(
            f"there is no data '{name}' in {group}{did_you_mean(name, known)} "
            f"(it has: {', '.join(known) or 'nothing'}). Name one of them, a spec, or another "
            "folder with --data-group"
        )
    try:
        plain: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
        return Data.model_validate({"name": name, **(plain or {})})
    except yaml.YAMLError as error:
        raise SpecError(str(file), [Fault(f"is not YAML: {error}")]) from error
    except (ValidationError, TypeError) as error:
        details = error.errors() if isinstance(error, ValidationError) else []
        raise SpecError(
            str(file),
            [
                Fault(f"{e['msg']}, got {e['input']!r}", f"$.{'.'.join(map(str, e['loc']))}")
                for e in details
            ]
            or [Fault("is not a mapping of the fields of `data`")],
        ) from error


def _unique(every: Iterable[Data]) -> list[Data]:
    return list(dict.fromkeys(every))
