"""What each KL term is in each release: the matrix, as rows of tables and as plain data.

A row of the matrix is the translation of one cell, beside the evidence on it. Nothing heavy is
imported: evidence is read, and cells are translated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.errors import UnsupportedSetting
from orchestrator.evidence import stored
from orchestrator.evidence.cells import Release, fitting, terms, translated
from orchestrator.evidence.stored import objective_text
from orchestrator.kl.library_semantics import DIFFERENCES, PLAIN, describe, differing
from orchestrator.settings import BackendRef, Kl
from orchestrator.spec.rehearse import semantics

RANK = ("exact", "approximated", "extension")
"""Statuses from the best to the worst. A KL term has the worst status of its fields."""


@dataclass(frozen=True, slots=True)
class CapabilityRow:
    """One KL term in one release of a library."""

    library: str
    version: str
    estimator: str
    placement: str
    label: str
    status: str
    """exact, approximated, extension, or refused."""
    notes: tuple[Mapping[str, str], ...]
    """The ledger's entries on its KL: field, key, value, note."""
    reason: str
    """The reason of a refusal."""
    on_policy: Mapping[str, Any] | None
    """The measurement, or None if the term was not measured."""
    off_policy: Mapping[str, Any] | None

    @property
    def release(self) -> str:
        """Return `library@version`."""
        return f"{self.library}@{self.version}"


def matrix(chosen: Sequence[Release]) -> list[CapabilityRow]:
    """Return every KL term in every chosen release."""
    return [row(library, version, kl) for kl in terms() for library, version in chosen]


def row(library: str, version: str, kl: Kl) -> CapabilityRow:
    """Return one KL term in one release."""
    status, notes, reason = _accounted(library, version, kl)
    on, off = (measurement(library, version, kl, on_policy) for on_policy in (True, False))
    return CapabilityRow(
        library, version, kl.estimator, str(kl.placement), kl.label, status, notes, reason, on, off
    )


def measurement(library: str, version: str, kl: Kl, on_policy: bool) -> Mapping[str, Any] | None:
    """Return the measurement of a term, or None if it was not measured.

    Its keys are objective, terms, scale, agrees and deviation; or only `refused`; or `error`.
    """
    cells = (stored.read(library, version) or {"cells": ()})["cells"]
    wanted = (kl.estimator, kl.placement, on_policy)
    return next(
        (c for c in cells if (c["estimator"], c["placement"], c["on_policy"]) == wanted), None
    )


def _accounted(
    library: str, version: str, kl: Kl
) -> tuple[str, tuple[Mapping[str, str], ...], str]:
    """Return the status, the ledger's entries on the KL, and the reason of a refusal."""
    try:
        plan = translated(fitting(library, version, kl))
    except UnsupportedSetting as error:
        return "refused", (), str(error)
    entries = [each for each in plan.ledger if each.field.startswith("kl.")]
    status = max((RANK.index(each.status) for each in entries), default=0)
    notes = tuple(
        {"field": e.field, "status": e.status, "key": e.key, "value": e.value, "note": e.note}
        for e in entries
        if e.key or e.note
    )
    return RANK[status], notes, ""


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
