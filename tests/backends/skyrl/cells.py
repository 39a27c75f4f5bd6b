"""Cells to translate: the shipped specs' and drawn ones, asked of SkyRL."""

from pathlib import Path

from orchestrator.identity import fingerprint
from orchestrator.records import AttemptPaths, Cell
from tests.backends.specs import declared

VERSIONS = ("0.4.0", "0.3.0", "0.2.0")
PLACE = AttemptPaths(Path("/runs/plan"), Path("/runs/attempts/1"), Path("/runs/checkpoints"))


def asked_of(cell: Cell, version: str | None) -> Cell:
    """The same cell in SkyRL."""
    backend = cell.settings.backend.model_copy(update={"name": "skyrl", "version": version})
    return changed(cell, backend=backend)


def changed(cell: Cell, **update: object) -> Cell:
    settings = cell.settings.model_copy(update=update)
    return cell.model_copy(update={"settings": settings, "id": fingerprint(settings)})


def onpolicy(version: str | None = None) -> Cell:
    """k1 in the reward, beta 0.05, on MATH: the paper's first."""
    cells = declared("cross_library")
    return asked_of(next(c for c in cells if c.settings.kl.label == "k1.reward"), version)


def asynchronous(version: str | None = None) -> Cell:
    cells = declared("comedy_full")
    return asked_of(
        next(c for c in cells if "async10" in c.studies and c.settings.kl.label == "k1.reward"),
        version,
    )
