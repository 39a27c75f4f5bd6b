"""Every search of an experiment, read back from its folder: for a report of the whole.

A search is found whoever began it, from the spec's block or from flags alone: beside its journal
lies the block it was last driven with. Nothing is written.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

from orchestrator.errors import OrchError
from orchestrator.experiment import Experiment
from orchestrator.files import read_json, write_text
from orchestrator.report.model import Section
from orchestrator.tune.design import read_back
from orchestrator.tune.journal import Journal
from orchestrator.tune.results import Found, found
from orchestrator.tune.section import panels, section

_LINKS = "links.json"


class Known(NamedTuple):
    """The searches of one journal."""

    name: str
    found: tuple[Found, ...]
    links: Mapping[str, str]
    """Cell id -> MLflow run."""


def known(experiment: Experiment) -> tuple[list[Known], list[str]]:
    """Journal by journal, by name, and why some search cannot be shown."""
    told: list[Known] = []
    faults: list[str] = []
    for log in sorted((experiment.folder.path / "tune").glob("*/journal.log")):
        journal = Journal(experiment.folder, log.parent.name)
        try:
            ours = tuple(_read(experiment, journal, faults))
        except OrchError as error:
            faults.append(str(error))
            continue
        if ours:
            told.append(Known(log.parent.name, ours, read_links(journal)))
    return told, faults


def searched(experiment: Experiment) -> tuple[Section | None, dict[str, Any], list[str]]:
    """What the experiment's report shows of its searches: a section, its data, and faults."""
    told, faults = known(experiment)
    if not told:
        return None, {}, faults
    parts = [section(one.found, one.links) for one in told]
    if len(parts) == 1:
        return parts[0], {"tune": panels(told[0].found)}, faults
    whole = replace(
        parts[0],
        text=tuple(f"{one.name}: {text}" for one, part in zip(told, parts, strict=True)
                   for text in part.text),
        points=tuple(dict.fromkeys(chain.from_iterable(part.points for part in parts))),
        figures=next((part.figures for part in parts if part.figures), ()),
        tables=tuple(replace(table, caption=f"{one.name}. {table.caption}")
                     for one, part in zip(told, parts, strict=True) for table in part.tables),
    )  # fmt: skip
    drawn = [{**panel, "title": f"{one.name}: {panel['title']}"}
             for one in told for panel in panels(one.found)]  # fmt: skip
    return whole, {"tune": drawn}, faults


def keep_links(journal: Journal, links: Mapping[str, str]) -> None:
    """Notes the MLflow runs of trials beside their journal."""
    write_text(journal.path / _LINKS, json.dumps(dict(links), indent=1) + "\n")


def read_links(journal: Journal) -> dict[str, str]:
    """Cell id -> MLflow run, as of the last mirror."""
    return dict(read_json(journal.path / _LINKS) or {})


def _read(experiment: Experiment, journal: Journal, faults: list[str]) -> list[Found]:
    shown = []
    for name, study in journal.studies().items():
        plain = read_json(journal.block_of(name))
        again = "run `orch tune` with what began it once more, or remove the folder"
        if plain is None:
            faults.append(f"{journal.path}: nothing says what search {name} was; {again}")
            continue
        try:
            search = read_back(experiment, name, plain)
        except OrchError as error:
            faults.append(f"{journal.path}: search {name} does not fit the spec any more: {error}")
            continue
        if journal.is_of(search):
            shown.append(found(search, study))
        else:
            faults.append(f"{journal.path}: search {name} is of another wording of the spec, so it "
                          "is not shown; `orch tune` with another --name searches anew"
                          )  # fmt: skip
    return shown
