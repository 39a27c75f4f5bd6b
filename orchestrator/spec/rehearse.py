"""Replace each declared cell by its rehearsal, at the scale of this machine.

A rehearsal is trained in the dialect of the library and release that the cell declares. So it shows
the different meanings that libraries give to equal settings.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

from orchestrator import plugins
from orchestrator.errors import UnsupportedSetting
from orchestrator.identity import fingerprint_by_seed
from orchestrator.kl.library_semantics import Semantics
from orchestrator.kl.verdicts import GradientVerdict, verdict_of
from orchestrator.library import neighbour
from orchestrator.records import Cell, EvalTask, EvaluationSpec
from orchestrator.settings import BackendRef, Settings, without_seed
from orchestrator.spec import select


def rehearse(cells: Iterable[Cell], backend: str = "micro") -> list[Cell]:
    """Return each cell at the embedded trainer's scale, in order.

    Declared cells that become the same training run become one cell: for example, the same settings
    in two libraries that give them the same meaning. It belongs to the studies of all of them, and
    its axes show every name under which it was declared. Raise UnsupportedSetting if the backend
    has no small scale, or for a release whose mathematics is unknown.
    """
    variants: dict[tuple[int, ...], _Rehearsed] = {}
    merged: dict[str, Cell] = {}
    for cell in cells:
        key = (id(cell.resources), id(cell.cadence), *without_seed(cell.settings))
        variant = variants.get(key)
        if variant is None:
            dialect = semantics(cell.settings.backend).dialect
            trainer = plugins.load_embedded(backend)
            first = trainer.rehearse(cell, dialect) if trainer else None
            if first is None:
                raise UnsupportedSetting(
                    backend,
                    "backend.name",
                    cell.settings.backend.name,
                    plugins.names(),
                    "Choose a site with a cluster (site=...).",
                )
            variant = _Rehearsed(cell, first, fingerprint_by_seed(first.settings))
            variants[key] = variant
        small = variant.of(cell)
        twin = merged.get(small.id)
        merged[small.id] = small if twin is None else _merge(twin, small)
    return list(merged.values())


class _Rehearsed(NamedTuple):
    """A cell and its rehearsal, from which the rehearsals of other seeds are derived
    (library/protocol.py)."""

    declared: Cell
    """The declared cell. The reference keeps it alive, so that no other cell gets the `id()` of its
    parts."""
    small: Cell
    id_of: Callable[[int], str]

    def of(self, cell: Cell) -> Cell:
        """Return the rehearsal of a cell that differs from `declared` only in its seed."""
        if self.small is self.declared:
            return cell
        seed = cell.settings.seed
        return self.small.but(
            id=self.id_of(seed),
            slug=cell.slug,
            studies=cell.studies,
            axes=cell.axes,
            settings=self.small.settings.but(seed=seed),
            declared=cell.settings,
        )


def replaced_tasks(cells: Iterable[Cell], evaluation: EvaluationSpec) -> tuple[EvalTask, ...]:
    """Return the tasks that backends use in place of the declared ones, over all cells.

    Return an empty result if nothing is declared, or if the declared tasks are run.
    """
    chosen: dict[EvalTask, None] = {}
    for cell in cells:
        if select.wanted(evaluation.tasks, cell):
            chosen |= dict.fromkeys(own_tasks(cell))
    return tuple(chosen)


def own_tasks(cell: Cell) -> tuple[EvalTask, ...]:
    """Return the tasks with which the cell's backend replaces the spec's, or () to keep them."""
    trainer = plugins.load_embedded(cell.settings.backend.name)
    return () if trainer is None else trainer.rehearse_tasks(cell)


def semantics(library: BackendRef) -> Semantics:
    """Return the meaning that a library's release gives to the settings, or the release that stands
    in for it."""
    return neighbour.semantics(plugins.load(library.name), library.version)


def verdict_on(settings: Settings) -> GradientVerdict:
    """Return the verdict on a cell's KL term in the dialect of its library. For a release of
    unknown mathematics, return the verdict without a dialect; for one without tables, say so."""

    library = settings.backend
    other = neighbour.stands_in(plugins.load(library.name), library.version)
    try:
        verdict = verdict_of(settings, semantics(library).dialect)
        if other is None:
            return verdict
        unverified = f"{library.name} {library.version} is unverified: read as {other}"
        return replace(verdict, summary=f"{verdict.summary} ({unverified})")
    except UnsupportedSetting:
        return verdict_of(settings)


def _merge(one: Cell, other: Cell) -> Cell:
    studies = one.studies + tuple(s for s in other.studies if s not in one.studies)
    axes = {
        name: _join(one.axes.get(name), other.axes.get(name)) for name in {**one.axes, **other.axes}
    }
    libraries = dict.fromkeys([*_libraries(one), *_libraries(other)])
    if {"backend", "backend.version"} <= axes.keys():  # a release for each name
        names, versions = zip(*libraries, strict=True)
        axes |= {"backend": " | ".join(names), "backend.version": " | ".join(versions)}
    return one.but(studies=studies, axes=axes)


def _libraries(cell: Cell) -> list[tuple[str, str]]:
    """Return the names and releases under which a cell was declared."""
    columns = (cell.axes.get(axis, "").split(" | ") for axis in ("backend", "backend.version"))
    return list(zip(*columns, strict=False))


def _join(one: str | None, other: str | None) -> str:
    names = [name for value in (one, other) if value for name in value.split(" | ")]
    return " | ".join(dict.fromkeys(names))
