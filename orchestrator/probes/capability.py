"""The capability matrix: the status of each KL term in each backend, and its measurement.

Nothing heavy is imported: evidence is read, and cells are translated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.errors import SelectionError, UnsupportedSetting, did_you_mean
from orchestrator.kl.catalogue import Naming, ObjectiveKind
from orchestrator.probes import evidence
from orchestrator.probes.cells import fitting, libraries, terms, translated
from orchestrator.settings import Kl

Release = tuple[str, str]
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


def releases(wanted: Sequence[str] = ()) -> list[Release]:
    """Return the releases named (`verl`, `verl@0.9.1`), or all.

    Raise SelectionError for another.
    """
    known = libraries()
    everything = [(name, version) for name, versions in known.items() for version in versions]
    if not wanted:
        return everything
    chosen: list[Release] = []
    for text in wanted:
        library, _, version = text.partition("@")
        if library not in known:
            raise SelectionError(
                f"there is no library '{library}' to measure{did_you_mean(library, known)} "
                f"(there are: {', '.join(known)})"
            )
        if version and version not in known[library]:
            raise SelectionError(
                f"orch does not drive {library} {version} (it drives: {', '.join(known[library])})"
            )
        chosen += [(library, each) for each in known[library] if not version or each == version]
    return list(dict.fromkeys(chosen))


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
    return _measured(library, version).get((kl.estimator, kl.placement, on_policy))


_KEPT: dict[Release, tuple[Any, Mapping[tuple[Any, ...], Mapping[str, Any]]]] = {}


def _measured(library: str, version: str) -> Mapping[tuple[Any, ...], Mapping[str, Any]]:
    release = evidence.read(library, version)
    if release is None:
        return {}
    kept = _KEPT.get((library, version))
    if kept is None or kept[0] is not release:
        rows = {(c["estimator"], c["placement"], c["on_policy"]): c for c in release["cells"]}
        kept = _KEPT[library, version] = (release, rows)
    return kept[1]


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


def words(measured: Mapping[str, Any] | None) -> str:
    """Return the measured objective in words: `token-level reverse KL`."""
    if measured is None:
        return "not measured"
    if "refused" in measured:
        return "refused"
    if "error" in measured:
        return f"raises {measured['error'].partition(':')[0]}"
    if measured["objective"] == ObjectiveKind.ZERO:
        return "nothing: zero-mean noise"
    terms = tuple((sign, key) for sign, key in measured["terms"])
    naming = Naming(ObjectiveKind(measured["objective"]), terms, measured["scale"])
    text = naming.words
    if measured.get("towards") == "rollout":
        return f"{text}, with the rollout policy in the place of the reference policy"
    return text


def own_launches(chosen: Sequence[Release], *, off_policy: bool) -> list[tuple[str, str, str]]:
    """Return release, name and objective of measured launches that no cell is translated into."""
    when = "off_policy" if off_policy else "on_policy"
    return [
        (f"{library}@{version}", each["name"], words(each[when]))
        for library, version in chosen
        for each in (evidence.read(library, version) or {"natives": ()})["natives"]
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


def document(chosen: Sequence[Release], rows: Sequence[CapabilityRow]) -> dict[str, Any]:
    """Return one JSON document with the rows and their evidence."""
    return {
        "rows": [asdict(each) for each in rows],
        "evidence": {
            f"{library}@{version}": {
                key: value
                for key, value in (evidence.read(library, version) or {}).items()
                if key != "cells"
            }
            for library, version in chosen
        },
    }
