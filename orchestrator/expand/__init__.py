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

import re
import weakref
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.errors import Fault, SpecError, did_you_mean
from orchestrator.expand.assign import Lookup, Pointer, Problem, spelled
from orchestrator.expand.axes import MAX_CELLS, Reader, TooLarge
from orchestrator.expand.build import Builder
from orchestrator.expand.rows import Row, Rows, rows
from orchestrator.fields import text_of
from orchestrator.fingerprint import fingerprint
from orchestrator.settings import Settings
from orchestrator.types import Cell, Spec, Study

MAX_SLUG = 96
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")
_LABELLED = ("model", "data", "kl.estimator", "kl.placement", "kl.beta", "backend",
             "max_staleness_steps", "resources", "cadence")  # fmt: skip
"""Fields that a standard label shows, or that change no result."""


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
    found = next((done for owner, done in _latest if owner() is spec), None) or expansion(spec)
    if found.problems:
        source = Path(spec.source) if spec.source else None
        faults = [Fault(p.message, spelled(p.pointer), source) for p in found.problems]
        raise SpecError(spec.source or spec.name, faults)
    return found


def expansion(
    spec: Spec, origins: Mapping[str, Mapping[str, Pointer]] | None = None, *, strict: bool = False
) -> Expansion:
    """Expands every study and collects all problems. `origins`: study -> field -> where written."""
    problems: list[Problem] = []
    cells: dict[str, Cell] = {}
    slugs: dict[str, str] = {}
    formulas: dict[str, str] = {}
    for study in spec.studies:
        own: Mapping[str, Pointer] = (origins or {}).get(study.name, {})
        try:
            found = rows(study, Reader(_entries(spec), problems), strict=strict)
        except TooLarge:
            problems.append(Problem(
                f"study '{study.name}' expands to more than {MAX_CELLS:,} cells; split it into "
                "studies or files that are run one by one", ("studies", study.name)
            ))  # fmt: skip
            continue
        builder = Builder(study.name, study.base, own, problems)
        added = _cells(study, found, builder, slugs)
        formulas[study.name] = f"{found.formula} = {len(added)}"
        for cell in added.values():
            twin = cells.get(cell.id)
            cells[cell.id] = cell if twin is None else _merged(twin, cell)
    done = Expansion(tuple(cells.values()), formulas, tuple(problems))
    _latest[:] = [(weakref.ref(spec), done)]
    return done


def _entries(spec: Spec) -> Lookup:
    def lookup(group: str, name: str) -> Mapping[str, Any]:
        entries = spec.groups.get(group, {})
        if name not in entries:
            raise LookupError(f"no {group} is called '{name}'{did_you_mean(name, entries)}")
        return entries[name]

    return lookup


def _cells(
    study: Study, found: Rows, builder: Builder, slugs: dict[str, str]
) -> dict[str, Cell]:
    """The cells of one study. Two rows that are one cell are a problem."""
    extras = _extra_labels(study, found)
    planned = [(row, seed) for seed in study.seeds for row in found.product]
    planned += [
        (row, seed) for row, own in found.included for seed in (study.seeds if own is None else own)
    ]
    parts_of: dict[int, dict[str, Any]] = {}
    cells: dict[str, Cell] = {}
    for row, seed in planned:
        parts = parts_of.get(id(row))
        if parts is None:
            parts = parts_of[id(row)] = builder.parts(row)
        settings = builder.settings(parts, seed, row)
        if settings is None:
            continue
        cell = _cell(study, settings, parts, extras, slugs)
        if cell.id in cells:
            _tell_twins(cell, cells[cell.id], row, builder)
        cells.setdefault(cell.id, cell)
    return cells


def _tell_twins(cell: Cell, twin: Cell, row: Row, builder: Builder) -> None:
    last = row[-1].assign[-1].pointer if row and row[-1].assign else builder.at
    builder.problems.append(
        Problem(f"two rows of study '{cell.studies[0]}' are the same cell, {twin.slug}: drop one "
                "with `exclude`, or keep an axis away from it with `when`", last)
    )  # fmt: skip


def _extra_labels(study: Study, found: Rows) -> list[str]:
    """The fields this study varies that no standard label shows."""
    choices = [c for axis in found.axes for c in axis.alternatives.choices]
    choices += [c for row, _ in found.included for c in row]
    fields: dict[str, None] = {}
    for choice in choices:
        for a in choice.assign:
            if a.field == "backend" and a.value.get("version"):
                fields["backend.version"] = None
            if not any(a.field == shown or (a.field.startswith(f"{shown}.") and shown not in
                       ("model", "data", "backend")) for shown in _LABELLED):  # fmt: skip
                fields[a.field] = None
    sections = {f for f in fields if any(other.startswith(f"{f}.") for other in fields)}
    covered = {f for f in fields if any(f.startswith(f"{s}.") for s in sections)}
    return [f for f in fields if f not in covered]


def _cell(
    study: Study, settings: Settings, parts: Mapping[str, Any], extras: list[str],
    slugs: dict[str, str],
) -> Cell:  # fmt: skip
    kl = settings.kl
    axes = {
        "model": settings.model.name,
        "data": settings.data.name,
        "kl": kl.label,
        "beta": text_of(kl.beta),
        "backend": settings.backend.name,
        "async": str(settings.max_staleness_steps),
        "seed": str(settings.seed),
    }
    for field in extras:
        try:
            axes[field] = text_of(attrgetter(field)(settings))
        except AttributeError:  # below a section that is not set, as loss.clip.low with no clip
            axes[field] = text_of(None)
    name = fingerprint(settings)
    slug = _slug(settings, axes, extras)
    if slugs.setdefault(slug, name) != name:
        slug = f"{slug}-{name[:6]}"
    return Cell(
        id=name, slug=slug, studies=(study.name,), axes=axes, settings=settings,
        resources=parts["resources"], cadence=parts["cadence"],
    )  # fmt: skip


def _slug(settings: Settings, axes: Mapping[str, str], extras: list[str]) -> str:
    """Readable, safe as a file name, and the same whatever else the spec declares."""
    words = [axes["model"], axes["data"], axes["kl"]]
    if settings.kl.estimator != "none":
        words.append(f"b{axes['beta']}")
    if settings.batch.num_minibatches > 1 and "batch.num_minibatches" not in extras:
        words.append(f"m{settings.batch.num_minibatches}")
    if settings.max_staleness_steps:
        words.append(f"a{axes['async']}")
    words.append(axes["backend"])
    words += [f"{field.rpartition('.')[2]}{axes[field]}" for field in extras]
    return _UNSAFE.sub("_", "-".join(words))[:MAX_SLUG] + f"-s{axes['seed']}"


def _merged(one: Cell, other: Cell) -> Cell:
    return one.model_copy(
        update={"studies": one.studies + other.studies, "axes": {**other.axes, **one.axes}}
    )
