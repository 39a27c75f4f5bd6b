"""The same grid at the scale of this machine: each declared cell becomes its rehearsal.

A rehearsal is trained in the dialect of the library and release it was declared for, so that what
the libraries mean differently by equal settings can be seen here.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from orchestrator import plugins
from orchestrator.errors import UnsupportedSetting
from orchestrator.kl.library_semantics import Semantics
from orchestrator.records import Cell
from orchestrator.settings import BackendRef, Settings

if TYPE_CHECKING:
    from orchestrator.kl.verdicts import GradientVerdict


def rehearse(cells: Iterable[Cell], backend: str = "micro") -> list[Cell]:
    """Return each cell at the embedded trainer's scale, in order.

    Declared cells that become the same training run (one cell asked of two libraries that mean the
    same by it, say) are one cell, in the studies of all, and its axes show every name it was
    declared under. Raises UnsupportedSetting if the backend has no scale of its own, or for a
    release whose mathematics nothing is known of.
    """
    trainer = plugins.load(backend)
    merged: dict[str, Cell] = {}
    for cell in cells:
        small = trainer.rehearse(cell, semantics(cell.settings.backend).dialect)
        if small is None:
            raise UnsupportedSetting(
                backend,
                "backend.name",
                cell.settings.backend.name,
                plugins.names(),
                "Choose a site with a cluster (site=...).",
            )
        twin = merged.get(small.id)
        merged[small.id] = small if twin is None else _merge(twin, small)
    return list(merged.values())


def semantics(library: BackendRef) -> Semantics:
    """Return what a library's release means by equal settings."""
    return plugins.load(library.name).semantics(library.version)


def verdict_on(settings: Settings) -> "GradientVerdict":
    """Return the verdict on a cell's KL term in the dialect of its library, or in the plain one
    for a release of whose mathematics nothing is known."""
    from orchestrator.kl.verdicts import verdict_of

    try:
        return verdict_of(settings, semantics(settings.backend).dialect)
    except UnsupportedSetting:
        return verdict_of(settings)


def _merge(one: Cell, other: Cell) -> Cell:
    studies = one.studies + tuple(s for s in other.studies if s not in one.studies)
    axes = {
        name: _join(one.axes.get(name), other.axes.get(name)) for name in {**one.axes, **other.axes}
    }
    return one.model_copy(update={"studies": studies, "axes": axes})


def _join(one: str | None, other: str | None) -> str:
    names = [name for value in (one, other) if value for name in value.split(" | ")]
    return " | ".join(dict.fromkeys(names))
