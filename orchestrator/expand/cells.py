"""Settings become cells: id, slug, and what each is called on every axis."""

import re
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from orchestrator.expand.assign import Problem
from orchestrator.expand.build import Builder
from orchestrator.expand.rows import Row, Rows
from orchestrator.fields import text_of
from orchestrator.fingerprint import fingerprint
from orchestrator.settings import Settings
from orchestrator.types import Cell, Study

MAX_SLUG = 96
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")
_LABELLED = ("model", "data", "kl.estimator", "kl.placement", "kl.beta", "backend",
             "max_staleness_steps", "resources", "cadence")  # fmt: skip
"""Fields that a standard label shows, or that change no result."""


def cells_of(study: Study, found: Rows, builder: Builder, slugs: dict[str, str]) -> dict[str, Cell]:
    """The cells of one study. Two rows that are one cell are a problem."""
    extras = _extra_labels(found)
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


def _extra_labels(found: Rows) -> list[str]:
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


def merged(one: Cell, other: Cell) -> Cell:
    return one.model_copy(
        update={"studies": one.studies + other.studies, "axes": {**other.axes, **one.axes}}
    )
