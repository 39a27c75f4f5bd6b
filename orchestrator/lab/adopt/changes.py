"""What differs between an adopted release and the nearest known one: the rows to look at."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from orchestrator import plugins
from orchestrator.evidence import stored
from orchestrator.evidence.stored import objective_text
from orchestrator.lab.adopt.child import Measured
from orchestrator.lab.probes.defaults import read_defaults
from orchestrator.lab.probes.measure import REGIMES
from orchestrator.library import adopted
from orchestrator.library.key_tables import Option, Options


class ChangedRow(NamedTuple):
    """One row to look at, with the value in both releases."""

    subject: str
    what: str
    before: str
    after: str


class Changes(NamedTuple):
    """What differs between two releases."""

    rows: tuple[ChangedRow, ...]
    texts: tuple[str, ...]
    """Probed functions whose text differs."""
    others: tuple[ChangedRow, ...]
    """Keys that differ, which orch does not send and which are not of the library's own classes."""


def changes(library: str, pair: tuple[str, str], own: Options, measured: Measured) -> Changes:
    """Return what differs between two releases of a library that have tables.

    own: the keys of the newer release's own classes.
    """
    releases = adopted.options(plugins.folder(library) / "options.json")
    before, after = (releases[each] for each in pair)
    evidence = [json.loads(stored.path(library, each).read_text(encoding="utf-8")) for each in pair]
    differing = list(_keys(before, after))
    matter = [row for row in differing if _matters(row.what, own, measured.sent)]
    defaults = read_defaults(library)
    return Changes(
        (
            *_of_defaults(*(defaults[each] for each in pair)),
            *_of_evidence(*evidence),
            *matter,
        ),
        tuple(
            name
            for name, each in evidence[1]["sources"].items()
            if evidence[0]["sources"].get(name, each)["sha256"] != each["sha256"]
        ),
        tuple(row for row in differing if row not in matter),
    )


def _matters(key: str, own: Options, sent: Sequence[str]) -> bool:
    return key in own or key.rpartition(".")[2] in sent or key in sent


def _keys(before: Options, after: Options) -> Iterator[ChangedRow]:
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if old != new:
            yield ChangedRow("key", key, _shown(old), _shown(new))


def _shown(option: Option | None) -> str:
    if option is None:
        return "not there"
    among = "" if option.values is None else f" of {', '.join(map(str, option.values))}"
    return f"{option.kind}{among} = {option.default}"


def _of_defaults(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[ChangedRow]:
    """Yield what a launch optimises that leaves the KL's keys out, where it differs."""
    for name in after.keys() - {"defaults", "sources"}:
        said = "says nothing" if name == "nothing" else f"says {name} alone"
        for regime in REGIMES:
            old, new = (objective_text(each[name][regime]) for each in (before, after))
            if old != new:
                what = f"a launch that {said}, {regime.replace('_', '-')}"
                yield ChangedRow("objective", what, old, new)


_LABEL = (
    "kind",
    "subject",
    "place",
    "name",
    "estimator",
    "placement",
    "on_policy",
    "least",
    "most",
)
"""What names an entry of a list in the evidence."""
_ASIDE = {"sources", "version", "library", "verdict", *stored.VOLATILE}
"""Numbers, whose last digits differ, and what is compared elsewhere."""


def _of_evidence(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[ChangedRow]:
    """Yield what was measured of functions and differs."""
    old, new = (dict(_leaves(each, "")) for each in (before, after))
    for what in dict.fromkeys([*old, *new]):
        if old.get(what) != new.get(what):
            texts = (_text(each.get(what)) for each in (old, new))
            yield ChangedRow("measured", what, *texts)


def _leaves(evidence: Any, at: str) -> Iterator[tuple[str, object]]:
    if isinstance(evidence, Mapping):
        for key, value in evidence.items():
            if isinstance(value, str) and key == "gradient":
                yield f"{at}, {key}", value
            elif key not in _ASIDE:
                yield from _leaves(value, f"{at}, {key}".lstrip(", "))
    elif isinstance(evidence, list) and evidence and all(isinstance(x, Mapping) for x in evidence):
        for value in evidence:
            label = " ".join(str(value[key]) for key in _LABEL if value.get(key) is not None)
            rest = {key: each for key, each in value.items() if key not in _LABEL}
            yield from _leaves(rest, f"{at} ({label})")
    else:
        yield at, evidence


def _text(value: object) -> str:
    return "not measured" if value is None else str(value)
