"""What libraries mean differently by equal settings, and what that does to beta."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator import registry
from orchestrator.causes import CAUSES, differing, said
from orchestrator.compare.estimates import Estimate, estimate
from orchestrator.compare.libraries import Asked, Question
from orchestrator.compare.runs import Run
from orchestrator.dialect import PLAIN, Dialect, relevant
from orchestrator.errors import UnsupportedSetting
from orchestrator.scale import semantics
from orchestrator.types import LedgerEntry, Place

BETA_EFFECTIVE = "train/beta_effective"
_NOWHERE = Place(Path("/plan"), Path("/attempt"), Path("/checkpoints"))
_ABOUT = ("kl.", "loss.", "advantage.", "optimizer.", "batch.", "max_staleness_steps", "seed")


@dataclass(frozen=True)
class Meaning:
    """One cause in which a library parts from the base, and the questions it matters to."""

    cause: str
    title: str
    base: str
    other: str
    questions: tuple[str, ...]


def dialect_for(asked: Asked) -> Dialect:
    """What of a library's dialect matters to a cell."""
    settings = asked.cell.settings
    return relevant(semantics(settings.backend).dialect, settings)


def causes_between(one: Asked, other: Asked) -> list[str]:
    """Causes in which two libraries differ on a cell; not those in which they are alike and which
    another cause keeps from mattering in one (a bound of a ratio that is 1)."""
    apart = differing(*(semantics(x.cell.settings.backend).dialect for x in (one, other)))
    return [each for each in differing(dialect_for(one), dialect_for(other)) if each in apart]


def meanings(found: Sequence[Question], base: str, library: str) -> list[Meaning]:
    """Every cause in which two libraries differ on these questions."""
    said_of: dict[tuple[str, str, str], list[str]] = {}
    for question in found:
        if base not in question.asked or library not in question.asked:
            continue
        both = question.one(base), question.one(library)
        one, other = map(dialect_for, both)
        for cause in causes_between(*both):
            key = (cause, said(one, cause), said(other, cause))
            said_of.setdefault(key, []).append(question.name)
    return [
        Meaning(cause, CAUSES[cause].title, a, b, tuple(where))
        for (cause, a, b), where in said_of.items()
    ]


def omitted(found: Sequence[Question], library: str) -> tuple[str, ...]:
    """What of a library the rehearsal does not imitate."""
    backend = next(q.one(library) for q in found if library in q.asked).cell.settings.backend
    return semantics(backend).omits


def not_compared(found: Sequence[Question]) -> list[str]:
    """Of what matters to these questions: what of the libraries was read in their sources, and not
    held against their own functions by running them."""
    read: dict[str, tuple[str, ...]] = {}
    for question in found:
        for library in question.asked:
            for cause in differing(dialect_for(question.one(library)), PLAIN):
                if CAUSES[cause].not_compared and library not in read.get(cause, ()):
                    read[cause] = (*read.get(cause, ()), library)
    return [
        f"{CAUSES[cause].title} of {', '.join(libraries)}, not compared: "
        f"{CAUSES[cause].not_compared}"
        for cause, libraries in read.items()
    ]


@dataclass(frozen=True)
class LedgerGap:
    """One field of which two ledgers do not say the same."""

    field: str
    base: str
    other: str
    questions: tuple[str, ...]


def ledger_gaps(found: Sequence[Question], base: str, library: str) -> list[LedgerGap]:
    """Where two libraries' ledgers say different things of the mathematics of the same cell, at
    least one of them something other than `exact`."""
    said_of: dict[tuple[str, str, str], list[str]] = {}
    for question in found:
        if base not in question.asked or library not in question.asked:
            continue
        one, other = (_ledger(question.one(name)) for name in (base, library))
        for field in [f for f in one if f in other and f.startswith(_ABOUT)]:
            a, b = (_told(entry) for entry in (one[field], other[field]))
            if a != b and not one[field].status == other[field].status == "exact":
                said_of.setdefault((field, a, b), []).append(question.name)
    return [LedgerGap(f, a, b, tuple(where)) for (f, a, b), where in said_of.items()]


def _told(entry: LedgerEntry) -> str:
    return f"{entry.status}: {entry.note}" if entry.note else entry.status


def _ledger(asked: Asked) -> Mapping[str, LedgerEntry]:
    """Field -> entry; empty for a cell that the library refuses."""
    cell = asked.cell
    if cell.scale == "micro":  # trained as its rehearsal
        rehearsed = registry.load("micro").rehearse(cell)
        cell = rehearsed or cell
    try:
        plan = registry.load(cell.settings.backend.name).translate(cell, _NOWHERE)
    except UnsupportedSetting:
        return {}
    return {entry.field: entry for entry in plan.ledger}


def refused(found: Sequence[Question], library: str) -> dict[str, str]:
    """Question -> the library's sentence, for cells it cannot run: their rehearsal is of what it
    would mean by them."""
    told = {}
    for question in found:
        if library not in question.asked:
            continue
        cell = question.one(library).cell
        if cell.scale == "micro":
            continue
        try:
            registry.load(cell.settings.backend.name).translate(cell, _NOWHERE)
        except UnsupportedSetting as error:
            told[question.name] = str(error)
    return told


def beta_effective(runs: Mapping[str, Run], question: Question, library: str) -> Estimate | None:
    """Mean over the steps of each seed; None where nothing measured it."""
    means = []
    for asked in question.asked[library].values():
        run = runs.get(asked.id)
        values = list(run.series.get(BETA_EFFECTIVE, {}).values()) if run else []
        if values:
            means.append(sum(values) / len(values))
    return estimate(means) if means else None
