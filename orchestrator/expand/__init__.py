"""Spec -> Cells. Pure: reads no file, imports no backend, works on plain data.

A study is its base (recipe, the spec's base, the study's own) and its axes:

    axes:
      model: [qwen2.5-7b, llama-3.1-8b-instruct]          two values; names of a config group
      kl:                                                  1 + 2 x 2 x 2 alternatives
        - none
        - product: {estimator: [k1, k3], placement: [reward, loss], beta: [0.1, 1.0]}
      task: {zip: {model: [a, b], data: [math, countdown]}}   coupled; any name will do
      loss.clip: [null, {low: 0.2, high: 0.28}]            any dotted field
      batch.num_minibatches: {values: [1, 4], when: {kl: k1.loss}}   elsewhere as in the base
    exclude: [{model: qwen2.5-7b, kl.beta: ">=1"}]         rows for which all of it holds
    include: [{kl: k2.loss, kl.beta: 0.1}]                 one more row each, on the base

Axes multiply, in the order written; conditional ones come after the others (see rows.py); then
exclusions, inclusions, and the seeds. A value that is a mapping changes the fields it names and
no other; `model`, `data` and `backend` are replaced whole; `none` takes the base's placement and
beta with it. A cell that several studies ask for is one cell, in all of them.
"""

import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.errors import Fault, SpecError, did_you_mean
from orchestrator.expand.assign import Lookup, Pointer, Problem, spelled
from orchestrator.expand.axes import MAX_CELLS, Reader, TooLargeError
from orchestrator.expand.build import Builder
from orchestrator.expand.cells import cells_of, merged
from orchestrator.expand.rows import rows
from orchestrator.types import Cell, Spec, Study


class Expansion(NamedTuple):
    """The cells of a spec, how each study's number comes about, and what is wrong."""

    cells: tuple[Cell, ...]
    formulas: dict[str, str]
    problems: tuple[Problem, ...]


_latest: list[tuple[weakref.ref[Spec], Expansion]] = []
"""The last expansion: `load` checks every cell, and whoever loads a spec expands it next."""


def expand(spec: Spec) -> list[Cell]:
    """The declared cells, each once, by study and seed, in the order written.

    Raises SpecError with every cell that cannot be.
    """
    return list(_expansion_of(spec).cells)


def how(spec: Spec) -> dict[str, str]:
    """Study -> how its cells come about: `2 model x (1 + 2 x 4) kl x 3 seeds = 54`."""
    return dict(_expansion_of(spec).formulas)


def _expansion_of(spec: Spec) -> Expansion:
    found = next((done for owner, done in _latest if owner() is spec), None)
    if found is None:
        found = expansion(spec.studies, _entries(spec))
        keep(spec, found)
    if found.problems:
        source = Path(spec.source) if spec.source else None
        faults = [Fault(p.message, spelled(p.pointer), source) for p in found.problems]
        raise SpecError(spec.source or spec.name, faults)
    return found


def keep(spec: Spec, done: Expansion) -> None:
    """Remembers the expansion of a spec until another is kept."""
    _latest[:] = [(weakref.ref(spec), done)]


def expansion(
    studies: Sequence[Study],
    lookup: Lookup,
    origins: Mapping[str, Mapping[str, Pointer]] | None = None,
    *,
    strict: bool = False,
) -> Expansion:
    """Expands studies and collects all problems.

    `origins`: study -> field -> where it was written. `strict`: see rows.py.
    """
    problems: list[Problem] = []
    cells: dict[str, Cell] = {}
    slugs: dict[str, str] = {}
    formulas: dict[str, str] = {}
    for study in studies:
        own: Mapping[str, Pointer] = (origins or {}).get(study.name, {})
        try:
            found = rows(study, Reader(lookup, problems), strict=strict)
        except TooLargeError:
            problems.append(Problem(
                f"study '{study.name}' expands to more than {MAX_CELLS:,} cells; split it into "
                "studies or files that are run one by one", ("studies", study.name)
            ))  # fmt: skip
            continue
        builder = Builder(study.name, study.base, own, problems)
        if found.broken:
            builder.alone(c for axis in found.axes for c in axis.alternatives.choices)
            continue
        added = cells_of(study, found, builder, slugs)
        formulas[study.name] = f"{found.formula} = {len(added)}"
        for cell in added.values():
            twin = cells.get(cell.id)
            cells[cell.id] = cell if twin is None else merged(twin, cell)
    return Expansion(tuple(cells.values()), formulas, tuple(problems))


def _entries(spec: Spec) -> Lookup:
    def lookup(group: str, name: str) -> Mapping[str, Any]:
        entries = spec.groups.get(group, {})
        if group == "backend":
            return {}  # `load` has checked it
        if name not in entries:
            raise LookupError(f"no {group} is called '{name}'{did_you_mean(name, entries)}")
        entry: Mapping[str, Any] = entries[name]
        return entry

    return lookup
