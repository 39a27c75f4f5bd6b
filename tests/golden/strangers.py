"""Launches that somebody changed, read back: the faults, or the fields that became others."""

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from orchestrator import plugins
from orchestrator.errors import SpecError
from orchestrator.identity import flatten
from tests.golden import HERE, PLACE, RELEASES, cell_of


def read_back() -> dict[str, str]:
    """Return the launches' names -> what orch reads in them."""
    table: dict[str, list[Any]] = yaml.safe_load((HERE / "strangers.yaml").read_text("utf-8"))
    return {
        f"{library}: {_name(row)}": "\n".join(_read(library, row))
        for library, rows in table.items()
        for row in ({"more": each} if isinstance(each, str) else each for each in rows)
    }


def _name(row: Mapping[str, Any]) -> str:
    given = {**row, **row.get("replace", {})}
    return ", ".join(
        f"{key} {value}".replace("\n", " | ") if key != "more" else str(value)
        for key, value in given.items()
        if key != "replace"
    )


def _read(library: str, row: Mapping[str, Any]) -> Iterator[str]:
    changes = dict(row.get("cell", {}))
    cell = cell_of(library, changes.pop("backend.version", RELEASES[library]), changes)
    plan = plugins.load(library).translate(cell, PLACE)
    argv, files = list(plan.argv), dict(plan.files)
    if (left_out := row.get("without")) is not None:
        where = next(n for n, word in enumerate(argv) if left_out in word)
        if left_out.startswith("--"):
            del argv[where : where + 2]
        argv = [word for word in argv if left_out not in word]
    for old, new in row.get("replace", {}).items():
        assert any(old in text for text in (*argv, *files.values())), old
        argv = [word.replace(old, new) for word in argv]
        files = {name: text.replace(old, new) for name, text in files.items()}
    try:
        back = plugins.load(library).parse([*argv, *str(row.get("more", "")).split()], files)
    except SpecError as error:
        yield from sorted(map(str, error.faults))
        return
    before, after = dict(flatten(cell.settings.model_dump())), dict(flatten(back.model_dump()))
    for field in before | after:
        if before.get(field) != after.get(field):
            yield f"reads {field}={after.get(field)} for {before.get(field)}"
