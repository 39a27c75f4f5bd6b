"""What each KL term is in each release: the matrix, as rows of tables and as plain data.

A row of the matrix is the translation of one cell, beside the evidence on it. Nothing heavy is
imported: evidence is read, and cells are translated.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from orchestrator.evidence import stored
from orchestrator.evidence.capabilities import CapabilityRow
from orchestrator.evidence.cells import Release
from orchestrator.evidence.stored import (
    ALL_TOKENS,
    objective_text,
)
from orchestrator.kl.library_semantics import DIFFERENCES, PLAIN, describe, differing
from orchestrator.settings import BackendRef
from orchestrator.spec.rehearse import semantics

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def own_launches(chosen: Sequence[Release], *, off_policy: bool) -> list[tuple[str, str, str]]:
    """Return release, name and objective of measured launches that no cell is translated into."""
    when = "off_policy" if off_policy else "on_policy"
    return [
        (f"{library}@{version}", each["name"], objective_text(each[when]))
        for library, version in chosen
        for each in (stored.read(library, version) or {"natives": ()})["natives"]
    ]


_SHORT = {
    "sequence_reverse_kl": "sequence reverse KL",
    "token_reverse_kl": "token reverse KL",
    "token_forward_kl": "token forward KL",
    "sequence_forward_kl": "sequence forward KL",
    "zero": "noise",
    "surrogate": "surrogate",
    "mixture": "mixture",
    "unknown": "unknown",
}
_MARKS = {"exact": "", "approximated": " ~", "extension": " +"}


def short(row: CapabilityRow, off_policy: bool) -> str:
    """Return a row's objective in one or two words, with its marks."""
    if row.status == "refused":
        return "-"
    verdict = row.off_policy if off_policy else row.on_policy
    if verdict is None:
        return "?" + _MARKS[row.status]
    if "refused" in verdict:
        return "-"
    text = (
        verdict["error"].partition(":")[0] if "error" in verdict else _SHORT[verdict["objective"]]
    )
    return text + _MARKS[row.status] + ("" if verdict.get("agrees") else " !")


def table(
    rows: Sequence[CapabilityRow], chosen: Sequence[Release], off_policy: bool
) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows of a table: a row for each KL term, a column for each release."""
    by_term: dict[str, dict[str, CapabilityRow]] = {}
    for row in rows:
        by_term.setdefault(row.label, {})[row.release] = row
    columns = ["@".join(each) for each in chosen]
    body = [
        [label, *(short(of_term[name], off_policy) for name in columns)]
        for label, of_term in by_term.items()
    ]
    return ["KL term", *columns], body


def document(chosen: Sequence[Release], rows: Sequence[CapabilityRow]) -> dict[str, Any]:
    """Return one JSON document with the rows and their evidence."""
    return {
        "rows": [asdict(each) for each in rows],
        "evidence": {
            f"{library}@{version}": {
                key: value
                for key, value in (stored.read(library, version) or {}).items()
                if key != "cells"
            }
            for library, version in chosen
        },
    }


CORRECTION_COLUMNS = (
    "library",
    "launch",
    "`loss.correction.kind`",
    "weight of a token in the policy loss",
    "its ratio is of",
    "KL in the loss",
)
RATIO_OF = {
    "proximal": "proximal policy / engine",
    "policy": "policy / engine",
    "?": "?",
    None: "-",
}


def _corrections(release: Release) -> Sequence[Mapping[str, Any]]:
    """Return the measured corrections of a release: those of cells, then in its own words."""
    measured = (stored.read(*release) or {}).get("corrections")
    if measured is None:
        return ()
    cells = [
        {**each, "name": f"loss.correction.kind={each['kind']}{_with_bounds(each)}"}
        for each in measured["cells"]
        if "refused" not in each
    ]
    return [*cells, *measured["own"]]


def _with_bounds(cell: Mapping[str, Any]) -> str:
    bounds = {name: cell[name] for name in ("least", "most") if cell[name]}
    return "".join(f" {name}={value:g}" for name, value in bounds.items())


def correction_rows(known: Sequence[Release]) -> list[tuple[str, ...]]:
    """Return a row of CORRECTION_COLUMNS for each correction. Releases that agree share a row."""
    versions = grouped(
        ((library, *_correction_row(entry)), version)
        for library, version in known
        for entry in _corrections((library, version))
    )
    return [(f"{key[0]} {', '.join(of)}", *key[1:]) for key, of in versions.items()]


def _correction_row(entry: Mapping[str, Any]) -> tuple[str, ...]:
    name = f"`{entry['name']}`" + (" (says nothing of it)" if entry.get("silent") else "")
    if "error" in entry:
        return (name, "-", f"raises {entry['error']}", "-", "-")
    policy = entry["policy"]
    ratio = RATIO_OF[policy.get("of")] if policy["weight"] != "1" else "-"
    kind = policy.get("kind")
    same = kind and policy["divisor"] == ALL_TOKENS and policy.get("of") == "proximal"
    return (name, f"`{kind}`" if same else "-", weight_text(policy), ratio, _of_kl(entry))


def weight_text(part: Mapping[str, Any]) -> str:
    """Return a measured weight in words, with its divisor if that is not all tokens."""
    if part["weight"] == "?":
        return "none that orch knows"
    divided = "" if part["divisor"] == ALL_TOKENS else f"; divided by {part['divisor']}"
    return str(part["weight"]) + divided


def _of_kl(entry: Mapping[str, Any]) -> str:
    kl, policy = entry.get("kl"), entry["policy"]
    if kl is None:
        return "the launch has none"
    if kl["weight"] == "1":
        return "not weighted" + weight_text(kl).removeprefix("1")
    return "the same" if weight_text(kl) == weight_text(policy) else weight_text(kl)


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return key -> its values, in the order of the pairs."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


# Mathematics of a release that was not measured: read in its source, or left out of rehearsals.


Unmeasured = tuple[str, str, str]
"""The property, its value in the release, and the reason why it was not measured."""
LEFT_OUT = "left out of the rehearsal"


def unmeasured_differences(library: str, version: str) -> list[Unmeasured]:
    """Return the differences that were only read in the source, then those no rehearsal has."""
    meaning = semantics(BackendRef(name=library, version=version))
    read = [
        (
            DIFFERENCES[cause].title,
            describe(meaning.dialect, cause),
            DIFFERENCES[cause].not_compared,
        )
        for cause in differing(meaning.dialect, PLAIN)
        if DIFFERENCES[cause].not_compared
    ]
    return read + [("not imitated", sentence, LEFT_OUT) for sentence in meaning.omits]
