"""A release that orch has no tables of: cells are translated as on its nearest one, unverified.

The keys are held against the release's own configuration where it is at hand
(`Backend.keys_missing`). The cell, and so its id, holds the release's own name: a cell keeps its id
when the release is adopted later.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from orchestrator.errors import UnsupportedSetting
from orchestrator.kl.library_semantics import Semantics
from orchestrator.library.protocol import Backend, EmbeddedTrainer
from orchestrator.library.release_marks import RELEASE_NUMBER
from orchestrator.records import AttemptPaths, Cell, LaunchPlan, LedgerEntry
from orchestrator.settings import BackendRef

NOWHERE = AttemptPaths(Path("/plan"), Path("/attempt"), Path("/checkpoints"))
"""Paths for a launch that only has to be expressible."""
UNVERIFIED = "unverified"


def can_be_used(backend: Backend, version: str) -> bool:
    """Return True for a release that orch drives, and for any other release number of a library."""
    if version in backend.versions:
        return True
    return not isinstance(backend, EmbeddedTrainer) and bool(RELEASE_NUMBER.fullmatch(version))


def stands_in(backend: Backend, version: str | None) -> str | None:
    """Return the release whose tables stand in for a release; None for one that orch drives."""
    if version is None or version in backend.versions or not can_be_used(backend, version):
        return None
    return backend.neighbour(version)


def library_name(backend: BackendRef) -> str:
    """Return the name and release of a library, such as `verl@0.9.1`."""
    return f"{backend.name}@{backend.version}" if backend.version else backend.name


def shown_release(backend: Backend, version: str | None) -> str:
    """Return `verl 0.9.1`, `verl`, or `verl 0.9.0 (unverified)`, for people."""
    word = f" ({UNVERIFIED})" if stands_in(backend, version) else ""
    return f"{backend.name} {version or ''}".strip() + word


def semantics(backend: Backend, version: str | None) -> Semantics:
    """Return the meaning of equal settings in a release, or in the one that stands in for it."""
    return backend.semantics(stands_in(backend, version) or version)


def translated(backend: Backend, cell: Cell, paths: AttemptPaths) -> LaunchPlan:
    """Return the launch of a cell, also on a release without tables.

    Its ledger then says *unverified* where it said *exact*. Raise UnsupportedSetting for a cell
    that the library cannot express, and for a key that the release does not have.
    """
    version = cell.settings.backend.version
    neighbour = stands_in(backend, version)
    if neighbour is None or version is None:
        return backend.translate(cell, paths)
    known = BackendRef(name=backend.name, version=neighbour)
    # The cell keeps its id, which names folders in the launch.
    moved = cell.model_copy(
        update={"settings": cell.settings.model_copy(update={"backend": known})}
    )
    plan = _renamed(backend.translate(moved, paths), neighbour, version)
    missing = backend.keys_missing(version, plan)
    if missing:
        raise UnsupportedSetting(
            backend.name,
            "backend.version",
            version,
            backend.versions,
            f"{backend.title} {version} has no {', '.join(missing)}, which the launch of this cell "
            f"sets as on {neighbour}. Set backend.version={neighbour}.",
        )
    grade = "keys unseen" if missing is None else f"its keys are those of {version} itself"
    note = f"{UNVERIFIED}: read as {neighbour}, the nearest release that orch drives; {grade}"
    return plan.model_copy(update={"ledger": _graded(plan.ledger, note)})


def _renamed(plan: LaunchPlan, old: str, new: str) -> LaunchPlan:
    """Return a launch in which each word that is the old release's number is the new one's."""
    number = re.compile(rf"(?<![\w.-]){re.escape(old)}(?![\w.-])")
    return plan.model_copy(
        update={
            "version": new,
            "argv": tuple(number.sub(new, word) for word in plan.argv),
            "files": {name: number.sub(new, text) for name, text in plan.files.items()},
            "env": {name: number.sub(new, text) for name, text in plan.env.items()},
            "ledger": tuple(
                each.model_copy(update={"value": number.sub(new, each.value)})
                for each in plan.ledger
            ),
        }
    )


def _graded(ledger: Sequence[LedgerEntry], note: str) -> tuple[LedgerEntry, ...]:
    """Return a ledger without the word *exact*; the entry of the release has the note."""
    graded = []
    for each in ledger:
        changes: dict[str, str] = {"status": UNVERIFIED} if each.status == "exact" else {}
        if each.field == "backend.version":
            changes["note"] = note
        elif each.status != "exact":
            changes["note"] = f"{UNVERIFIED}; {each.note}"
        graded.append(each.model_copy(update=changes))
    return tuple(graded)
