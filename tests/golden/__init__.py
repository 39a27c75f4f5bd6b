"""Golden launches: what each library is started with, as text files that a person reads.

`python -m tests.golden --write` writes them again; the difference in git is what a change of the
product changes in the launches.
"""

import difflib
import re
import textwrap
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePath
from typing import Any

import yaml

from orchestrator import plugins
from orchestrator.errors import UnsupportedSetting
from orchestrator.identity import fingerprint
from orchestrator.records import AttemptPaths, Cell, LaunchPlan
from orchestrator.settings import Settings
from tests.backends.specs import declared

HERE = Path(__file__).parent
RELEASES = {
    "verl": "0.9.1",
    "openrlhf": "0.11.2",
    "skyrl": "0.4.0",
    "prime_rl": "0.5.0",
    "trl": "1.16.0",
}
OLDER = {
    "verl": "0.8.0",
    "openrlhf": "0.10.1.post2",
    "skyrl": "0.2.0",
    "prime_rl": "0.8.0",
    "trl": "1.9.2",
}
"""The oldest releases that orch drives, or in Prime-RL the newest, which expresses fewer cells."""
PLACE = AttemptPaths(
    Path("/runs/e/cells/c/plan"), Path("/runs/e/attempts/1"), Path("/runs/e/checkpoints")
)
SHOWN = (".toml", ".yaml", ".yml", ".json")
"""Files of a launch that are shown whole; of others only the name."""


def rows(library: str) -> dict[str, dict[str, Any]]:
    """Return name -> changes: dotted field of a cell -> value."""
    read: dict[str, dict[str, Any]] = yaml.safe_load((HERE / "cells.yaml").read_text("utf-8"))
    return {
        name: changes
        for name, changes in read.items()
        if " own " not in name or name.startswith(f"{library} own ")
    }


def cell_of(library: str, version: str, changes: dict[str, Any]) -> Cell:
    """Return the paper's first on-policy cell, in a library, with some fields changed."""
    first = next(cell for cell in declared("comedy_full") if "onpolicy" in cell.studies)
    plain: dict[str, Any] = {
        **first.settings.model_dump(),
        "resources": {"num_nodes": 1, "gpus_per_node": 8},
    }
    plain["backend"] = {"name": library, "version": version}
    for field, value in changes.items():
        *sections, leaf = field.split(".")
        section = plain
        for name in sections:
            section = section.setdefault(name, {})
        section[leaf] = value
    if (
        library == "trl" and plain["kl"].get("placement") == "reward"
    ):  # its RLOOTrainer has no other
        plain["loss"] |= {"aggregation": "constant", "constant_tokens": 1}
    beside = {name: plain.pop(name, {}) for name in ("resources", "cadence", "system")}
    loggers = plain.pop("loggers", ())
    settings = Settings.model_validate(plain)
    parts = {"slug": "x", "studies": ("s",), "axes": {}, "settings": settings, **beside}
    return Cell.model_validate({"id": fingerprint(settings), "loggers": loggers, **parts})


@cache
def cells(library: str) -> tuple[Cell, ...]:
    """Return the cells of all rows, in each release that trains them."""
    found = []
    for version in plugins.load(library).versions:
        for changes in rows(library).values():
            cell = cell_of(library, version, changes)
            with suppress(UnsupportedSetting):
                plugins.load(library).translate(cell, PLACE)
                found.append(cell)
    return tuple(found)


def launch(library: str, version: str, changes: dict[str, Any]) -> str:
    """Write one launch as text: arguments, environment, files, and all that is not exact."""
    try:
        cell = cell_of(library, version, changes)
        plan = plugins.load(library).translate(cell, PLACE)
    except UnsupportedSetting as refused:
        return "\n".join(["refused:", *_wrapped(str(refused))])
    back = plugins.load(library).parse(plan.argv, plan.files)
    assert fingerprint(back) == cell.id, f"{library} {version}: {changes} is read back as another"
    return "\n".join(_lines(plan)).replace(f'"{cell.id}"', "ID").replace(cell.id, "ID")


def beside(first: str, launch: str) -> str:
    """Write a launch as what it has instead of the first one's lines."""
    if launch.startswith("refused:"):
        return launch
    lines = difflib.ndiff(first.splitlines(), launch.splitlines())
    return "\n".join(line.rstrip() for line in lines if line[0] in "+-")


def _lines(plan: LaunchPlan) -> list[str]:
    lines = list(_grouped(plan.argv))
    lines += [f"env {name}={value}" for name, value in sorted(plan.env.items())]
    for name, text in sorted(plan.files.items()):
        if PurePath(name).suffix in SHOWN:
            lines += [f"file {name}:", *(f"    {line}" for line in str(text).splitlines())]
    lines.append("files " + " ".join(sorted(name for name in plan.files if "/" not in name)))
    for entry in plan.ledger:
        if entry.status != "exact":
            lines += [f"{entry.status} {entry.field}:", *_wrapped(entry.note)]
    return lines


def _grouped(argv: tuple[str, ...]) -> list[str]:
    """Put an option and its values on one line, in alphabetical order after the program."""
    first = next((n for n, word in enumerate(argv) if _starts(word)), len(argv))
    groups: list[list[str]] = []
    for word in argv[first:]:
        if _starts(word) or not groups:
            groups.append([word])
        else:
            groups[-1].append(word)
    return [" ".join(argv[:first]), *sorted("  " + " ".join(group) for group in groups)]


def _starts(word: str) -> bool:
    return word.startswith("--") or bool(re.match(r"\+*[\w.]+=", word))


def _wrapped(text: str) -> list[str]:
    return [f"    {line}" for line in textwrap.wrap(text, 100, break_long_words=False)]


def golden(library: str) -> dict[str, str]:
    """Write all launches of a library: the first one whole, those of an older release if they
    differ from the newest one's in another way."""
    newest = _differences(library, RELEASES[library])
    older = _differences(library, OLDER[library])
    for name, text in older.items():
        if text != newest[name]:
            newest[f"{name} @ {OLDER[library]}"] = text
    return newest


def _differences(library: str, version: str) -> dict[str, str]:
    written: dict[str, str] = {}
    first = ""
    for name, changes in rows(library).items():
        text = launch(library, version, changes)
        written[name] = beside(first, text) if first else text
        first = first or text
    return written
