"""What differs between an adopted release and the nearest known one: the rows to look at."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lab.adopt import loss_code
from lab.adopt.child import MeasuredRelease
from orchestrator import plugins
from orchestrator.evidence import stored
from orchestrator.evidence.stored import objective_text
from orchestrator.kl.catalogue import ObjectiveKind
from orchestrator.library.key_tables import Option, Options, load_options

NOT_MEASURED = "not measured"


class ChangedRow(NamedTuple):
    """One row to look at, with the value in both releases."""

    subject: str
    what: str
    before: str
    after: str


class ReleaseChanges(NamedTuple):
    """What differs between two releases."""

    rows: tuple[ChangedRow, ...]
    texts: tuple[str, ...]
    """Probed functions whose text differs."""
    others: tuple[ChangedRow, ...]
    """Keys that differ, which orch does not send and which are not of the library's own classes."""


def changes(
    library: str, pair: tuple[str, str], own: Collection[str], measured: MeasuredRelease
) -> ReleaseChanges:
    """Return what differs between two releases of a library that have tables.

    own: the keys in which a difference is a row to look at.
    """
    releases = load_options(plugins.folder(library) / "options.json")
    before, after = (releases[each] for each in pair)
    stored.read.cache_clear()
    evidence = [stored.read(library, each) or {"sources": {}} for each in pair]
    differing = list(differing_keys(before, after))
    matter = [row for row in differing if _matters(row.what, own, measured.sent)]
    return ReleaseChanges(
        (
            *_of_code(library, *pair),
            *sorted(of_evidence(*evidence), key=_sort_key),
            *_together(matter),
        ),
        tuple(
            name
            for name, each in evidence[1]["sources"].items()
            if evidence[0]["sources"].get(name, each)["sha256"] != each["sha256"]
        ),
        tuple(row for row in differing if row not in matter),
    )


def _matters(key: str, own: Collection[str], sent: Sequence[str]) -> bool:
    return key in own or key.rpartition(".")[2] in sent or key in sent


def differing_keys(before: Options, after: Options) -> Iterator[ChangedRow]:
    """Yield the keys that differ, or that one release has alone."""
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if old != new:
            yield ChangedRow("key", key, _shown(old), _shown(new))


def _together(rows: Sequence[ChangedRow]) -> Iterator[ChangedRow]:
    """Yield rows of keys; those that differ alike in two scripts (`grpo.beta`) are one."""
    alike: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        owner, _, name = row.what.rpartition(".")
        alike.setdefault((name, row.before, row.after), []).append(owner)
    for (name, before, after), owners in alike.items():
        yield ChangedRow(
            "key", " and ".join(f"{owner}.{name}".lstrip(".") for owner in owners), before, after
        )


def _shown(option: Option | None) -> str:
    if option is None:
        return "not there"
    among = "" if not option.values else f" of {', '.join(map(str, option.values))}"
    return f"{option.kind}{among} = {option.default}"


def _sort_key(row: ChangedRow) -> tuple[bool, bool]:
    """Return the key that sorts measurements: corrections go last, and after them what orch sends
    none of."""
    refused = any(text.startswith("refused ") for text in (row.before, row.after))
    return refused, row.what.startswith("corrections")


def _of_code(library: str, old: str, new: str) -> Iterator[ChangedRow]:
    """Yield the functions of the KL, the advantage and the loss that have another code."""
    before, after = (loss_code.of_release(library, each) for each in (old, new))
    for path in sorted(before.keys() & after.keys()):
        for name in sorted(before[path].keys() | after[path].keys()):
            was, now = before[path].get(name), after[path].get(name)
            if was != now:
                text = "another code" if was and now else "there" if now else "not there"
                yield ChangedRow("code", f"{path}: {name}", "-" if was else "not there", text)


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
"""Fields that no row shows: numbers whose last digits differ, and what is compared elsewhere.

A field of these that holds a word is shown all the same: the `gradient` of an estimator is a name.
"""
_OF_AN_OBJECTIVE = ("objective", "scale", "towards", "agrees")
"""Fields of an objective: `objective_text` puts what matters of them into words."""
_NUMBERS = ("moved", "policy_weights", "kl_weights")
"""Fields that are shown rounded."""


def of_evidence(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[ChangedRow]:
    """Yield what two documents of evidence measured otherwise."""
    old, new = (_said(each) for each in (before, after))
    for what in dict.fromkeys([*old, *new]):
        if old.get(what) != new.get(what):
            was, now = (each.get(what, NOT_MEASURED) for each in (old, new))
            yield ChangedRow("measured", what, was, now)


def _said(evidence: Mapping[str, Any]) -> dict[str, str]:
    """Return what was measured, in words, by its place."""
    phrases: dict[str, str] = {}
    measured = {key: each for key, each in evidence.items() if isinstance(each, Mapping | list)}
    for place, text in _leaves(measured, ""):
        at = place.removeprefix("natives: ").replace("_", "-")
        phrases[at] = "; ".join(filter(None, [phrases.get(at), text]))
    return phrases


def _leaves(evidence: Any, at: str) -> Iterator[tuple[str, str]]:
    """Yield what was measured, with its place in words; what has an objective is its name."""
    if isinstance(evidence, Mapping):
        if "objective" in evidence:
            yield at, objective_text(evidence)
        plain = {
            key: value
            for key, value in evidence.items()
            if not isinstance(value, Mapping | list)
            and key not in _OF_AN_OBJECTIVE
            and (key not in _ASIDE or isinstance(value, str))
        }
        plain |= {key: _rounded(evidence[key]) for key in _NUMBERS if key in evidence}
        if evidence.get("objective") == ObjectiveKind.UNKNOWN:
            plain["gradient"] = _rounded(evidence["gradient"])
        if plain:
            yield at, ", ".join(f"{key} {value}" for key, value in plain.items())
        for key, value in evidence.items():
            if isinstance(value, Mapping | list) and key not in _ASIDE:
                yield from _leaves(value, f"{at}, {key}".lstrip(", "))
    elif isinstance(evidence, list) and all(isinstance(each, Mapping) for each in evidence):
        for value in evidence:
            named = {key: value[key] for key in _LABEL if _names(value.get(key))}
            rest = {key: each for key, each in value.items() if key not in named}
            yield from _leaves(rest, f"{at}: {_label(named)}")


def _rounded(numbers: Any) -> Any:
    """Return numbers to 4 digits, where releases that do the same do not differ."""
    if isinstance(numbers, list):
        return [_rounded(each) for each in numbers]
    return round(numbers, 4) + 0.0


def _names(value: object) -> bool:
    return value is not None and not isinstance(value, Mapping | list)


def _label(named: Mapping[str, object]) -> str:
    words = [str(value) for key, value in named.items() if key != "on_policy"]
    if "on_policy" in named:
        words.append("on-policy" if named["on_policy"] else "off-policy")
    return " ".join(words)
