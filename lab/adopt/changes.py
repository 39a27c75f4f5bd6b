"""What differs between an adopted release and the nearest known one: the rows to look at."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from lab.adopt import loss_code
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
    library: str, pair: tuple[str, str], own: Collection[str], sent: Collection[str]
) -> ReleaseChanges:
    """Return what differs between two releases of a library that have tables.

    own, sent: the keys in which a difference is a row to look at; those that orch sends.
    """
    releases = load_options(plugins.folder(library) / "options.json")
    before, after = (releases[each] for each in pair)
    stored.read.cache_clear()
    evidence = [stored.read(library, each) or {"sources": {}} for each in pair]
    differing = list(differing_keys(before, after))
    matter = [
        row
        for row in differing
        if row.what in own or row.what in sent or row.what.rpartition(".")[2] in sent
    ]
    return ReleaseChanges(
        (
            *_of_code(library, *pair),
            *sorted(of_evidence(*evidence), key=lambda row: row.what.startswith("corrections")),
            *matter,
        ),
        tuple(
            name
            for name, each in evidence[1]["sources"].items()
            if evidence[0]["sources"].get(name, each)["sha256"] != each["sha256"]
        ),
        tuple(row for row in differing if row not in matter),
    )


def differing_keys(before: Options, after: Options) -> Iterator[ChangedRow]:
    """Yield the keys that differ, or that one release has alone."""
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if old != new:
            yield ChangedRow("key", key, _shown(old), _shown(new))


def _shown(option: Option | None) -> str:
    if option is None:
        return "not there"
    among = "" if not option.values else f" of {', '.join(map(str, option.values))}"
    return f"{option.kind}{among} = {option.default}"


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
    *("kind", "subject", "place", "name", "estimator", "placement"),
    *("on_policy", "least", "most"),
)
"""What names an entry of a list in the evidence, where it is a plain value."""
_PLAIN = (str, float, bool)
_ASIDE = ("sources", "version", "library", "commit", "verdict", "deviation")
"""Fields that no row shows: numbers whose last digits differ, and what is compared elsewhere."""
_OF_AN_OBJECTIVE = ("objective", "terms", "scale", "towards", "agrees", "gradient")
"""Fields of an objective: `objective_text` puts what matters of them into words."""


def of_evidence(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[ChangedRow]:
    """Yield what two documents of evidence measured otherwise."""
    old, new = (dict(measurements(each)) for each in (before, after))
    for what in dict.fromkeys([*old, *new]):
        if old.get(what) != new.get(what):
            was, now = (each.get(what, NOT_MEASURED) for each in (old, new))
            yield ChangedRow("measured", what, was, now)


def unmeasured(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return what could not be measured any more, and the exception."""
    known, failed = (
        {at: text for at, text in measurements(each) if "error " in text}
        for each in (before, after)
    )
    return [f"{at}: {text}" for at, text in failed.items() if at not in known]


def measurements(evidence: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, str]]:
    """Yield what was measured, in words, with its place; what has an objective is its name."""
    aside, words = list(_ASIDE), list[str]()
    if "objective" in evidence:
        aside += _OF_AN_OBJECTIVE
        words.append(objective_text(evidence))
        if evidence["objective"] == ObjectiveKind.UNKNOWN:
            words.append(f"gradient {_rounded(evidence['gradient'])}")
    for key, value in evidence.items():
        place = f"{at}, {key}".lstrip(", ")
        if key in aside:
            continue
        if isinstance(value, Mapping):
            yield from measurements(value, place)
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            for each in value:
                # `on_policy` of a launch that no cell has is a measurement of its own
                label = {name: each[name] for name in _LABEL if isinstance(each.get(name), _PLAIN)}
                rest = {name: part for name, part in each.items() if name not in label}
                title = " ".join(map(_word, label.values()))
                yield from measurements(rest, f"{place}: {title}")
        else:
            words.append(f"{key} {_rounded(value)}")
    if words:
        yield at, ", ".join(words)


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "on-policy" if value else "off-policy"
    return str(value)


def _rounded(value: Any) -> Any:
    """Return numbers to 4 digits, where releases that do the same do not differ."""
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return round(value, 4) + 0.0 if isinstance(value, float) else value
