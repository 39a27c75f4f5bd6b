"""Each KL term in each release: how orch launches it, beside what was measured of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import UnsupportedSetting
from orchestrator.evidence import stored
from orchestrator.evidence.cells import Release, fitting, terms, translated
from orchestrator.settings import Kl

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
