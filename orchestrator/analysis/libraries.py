"""The same cells in several libraries: `orch compare --by backend`.

A *question* is a cell without its library and its seed. Libraries are compared on each question,
paired on seeds. A comparison has two *sides*, each with its records, metric and differences:
`predicted` has rehearsals in each library's dialect, and `observed` has runs of the libraries.
Sides are never mixed.

If two libraries give a question the same meaning, they share one training run at micro scale. Their
difference is then 0 by identity, not by measurement.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from orchestrator import plugins
from orchestrator.analysis.configurations import IN_DOMAIN, OUT_OF_DOMAIN, range_of
from orchestrator.analysis.runs import MeasuredRun, measure
from orchestrator.analysis.stats import ALPHA, Estimate, estimate, holm, one_sided_p, two_sided_p
from orchestrator.analysis.text import few, listed
from orchestrator.errors import SelectionError, UnsupportedSetting
from orchestrator.evaluate import score_index
from orchestrator.identity import digest, drift, identity
from orchestrator.kl.library_semantics import DIFFERENCES, PLAIN, differing, relevant
from orchestrator.library import neighbour
from orchestrator.library.neighbour import NOWHERE, library_name
from orchestrator.records import Cell, LedgerEntry, Record, Score
from orchestrator.rundir import RunFolder
from orchestrator.runs.collect import collect
from orchestrator.runs.experiment import Experiment
from orchestrator.settings import Settings
from orchestrator.spec.rehearse import rehearse, semantics
from orchestrator.spec.select import selected

MARGIN = 0.03
"""Two accuracies are indistinguishable if tests confirm a smaller difference than this."""
SideName = Literal["predicted", "observed"]
FinalValue = Callable[[str], float | None]
"""Cell id -> final value of the compared metric, or None without one."""
_MATHEMATICS = (
    "kl.",
    "loss.",
    "advantage.",
    "optimizer.",
    "batch.",
    "max_staleness_steps",
    "seed",
)
"""Prefixes of fields that belong to the mathematics of training."""


# ---------------------------------------------------------------- questions


@dataclass(frozen=True)
class LibraryCell:
    """A declared cell, with the id of the cell that is trained for it at a scale."""

    cell: Cell
    """The declared cell."""
    id: str

    @property
    def library(self) -> str:
        """Return the library's name and release, such as `verl@0.9.1`."""
        return library_name(self.cell.settings.backend)

    @property
    def seed(self) -> int:
        """Return the declared seed."""
        return self.cell.settings.seed

    @property
    def question(self) -> str:
        """Return a digest of the settings that are the same for all libraries and seeds."""
        return digest(_question_settings(self.cell.settings))


@dataclass(frozen=True)
class LibraryQuestion:
    """A question with its declared cells: library -> seed -> cell."""

    name: str
    cells: Mapping[str, Mapping[int, LibraryCell]]

    def any_seed(self, library: str) -> LibraryCell:
        """Return the cell of the library's first seed."""
        return next(iter(self.cells[library].values()))


def library_cells(cells: Sequence[Cell], side: SideName) -> tuple[list[LibraryCell], list[Cell]]:
    """Return the declared cells with the ids of their trained cells, and the trained cells."""
    if side == "observed":
        full = [cell for cell in cells if cell.scale == "full"]
        return [LibraryCell(cell, cell.id) for cell in full], full
    return [LibraryCell(cell, rehearse([cell])[0].id) for cell in cells], rehearse(cells)


def questions(cells: Sequence[LibraryCell]) -> list[LibraryQuestion]:
    """Return every question declared for two libraries or more, in order.

    Raise SelectionError without such a question. The message names the fields in which the nearest
    cells differ.
    """
    libraries = list(dict.fromkeys(cell.library for cell in cells))
    if len(libraries) < 2:
        raise SelectionError(
            f"all these cells are of {libraries[0] if libraries else 'no library'}: name two "
            "libraries or more on the axis `backend`"
        )
    grouped: dict[str, dict[str, dict[int, LibraryCell]]] = {}
    for cell in cells:
        grouped.setdefault(cell.question, {}).setdefault(cell.library, {})[cell.seed] = cell
    shared = [by_library for by_library in grouped.values() if len(by_library) > 1]
    if not shared:
        raise SelectionError(_nearest_text(cells, libraries))
    firsts = [next(iter(next(iter(by_library.values())).values())).cell for by_library in shared]
    names = _question_names(firsts)
    return [
        LibraryQuestion(name, by_library) for name, by_library in zip(names, shared, strict=True)
    ]


def _question_settings(settings: Settings) -> dict[str, object]:
    plain = identity(settings)
    return {name: value for name, value in plain.items() if name not in ("backend", "seed")}


def _nearest_text(cells: Sequence[LibraryCell], libraries: Sequence[str]) -> str:
    first = next(cell for cell in cells if cell.library == libraries[0])
    own = _question_settings(first.cell.settings)
    drifts = {
        other.cell.slug: drift(own, _question_settings(other.cell.settings))
        for other in cells
        if other.library != first.library
    }
    nearest, differ = min(drifts.items(), key=lambda each: len(each[1]))
    fields = ", ".join(f"{field} ({a} and {b})" for field, (a, b) in [*differ.items()][:6])
    return (
        f"no cell is asked of two libraries: {first.cell.slug} and its nearest, "
        f"{nearest}, differ in {fields}. Cells compare where all but the library "
        "is equal: make `backend` an axis of one study, or give both the same recipe"
    )


def _question_names(cells: Sequence[Cell]) -> list[str]:
    """Return `k1.reward β=0.05`, with the other axes in which these cells differ."""
    named_already = ("kl", "beta", "backend", "seed", "backend.version")
    axes = [{k: v for k, v in cell.axes.items() if k not in named_already} for cell in cells]
    differ = [k for k in axes[0] if len({a.get(k) for a in axes}) > 1]
    studies = len({cell.studies for cell in cells}) > 1
    names = []
    for cell in cells:
        kl = cell.settings.kl
        parts = [kl.label if kl.placement is None else f"{kl.label} β={kl.beta:g}"]
        parts += [f"{k}={cell.axes[k]}" for k in differ if k in cell.axes]
        parts += [",".join(cell.studies)] if studies else []
        names.append(" ".join(parts))
    twice = {name for name in names if names.count(name) > 1}
    return [f"{n} ({c.id})" if n in twice else n for n, c in zip(names, cells, strict=True)]


# ---------------------------------------------------------------- differences of final values


@dataclass(frozen=True)
class LibraryDifference:
    """`right` minus `left` on one question, paired on seeds."""

    question: str
    left: str
    right: str
    difference: Estimate | None
    """None if no seed has finished in both libraries."""
    same: bool
    """True if both libraries share the training runs."""
    p_corrected: float = 1.0

    @property
    def verdict(self) -> str:
        """Return `same mathematics`, `differs`, `indistinguishable` or `open`.

        Return `not comparable yet` if no seed has finished in both. `indistinguishable`: two
        one-sided tests show a difference smaller than MARGIN.
        """
        if self.same:
            return "same mathematics"
        if self.difference is None:
            return "not comparable yet"
        if self.p_corrected < ALPHA:
            return "differs"
        beyond = one_sided_p(self.difference, -MARGIN)[0], one_sided_p(self.difference, MARGIN)[1]
        return "indistinguishable" if max(beyond) < ALPHA / 2 else "open"


def library_differences(
    questions: Sequence[LibraryQuestion], base: str, value: FinalValue
) -> list[LibraryDifference]:
    """Return the difference of every library to `base` on each question.

    Correct the p-values by Holm over the measured differences.
    """
    found = [
        _difference(question, base, library, value)
        for question in questions
        if base in question.cells
        for library in question.cells
        if library != base
    ]
    measured = [i for i, one in enumerate(found) if one.difference is not None and not one.same]
    corrected = holm([two_sided_p(found[i].difference) for i in measured])
    for i, p in zip(measured, corrected, strict=True):
        found[i] = replace(found[i], p_corrected=p)
    return found


def _difference(
    question: LibraryQuestion, left: str, right: str, value: FinalValue
) -> LibraryDifference:
    one, other = question.cells[left], question.cells[right]
    seeds = sorted(one.keys() & other.keys())
    pairs = [(value(one[seed].id), value(other[seed].id)) for seed in seeds]
    by_seed = [b - a for a, b in pairs if a is not None and b is not None]
    effect = estimate(by_seed) if by_seed else None
    same = all(one[seed].id == other[seed].id for seed in seeds)
    return LibraryDifference(question.name, left, right, effect, same)


def missing_seeds(questions: Iterable[LibraryQuestion], value: FinalValue, spec: str) -> list[str]:
    """Return one sentence for each library that lacks seeds of another, with what to do."""
    reasons: dict[str, list[str]] = {}
    for question in questions:
        seeds = {seed for cells in question.cells.values() for seed in cells}
        for library, cells in question.cells.items():
            told = []
            if lacks := sorted(seeds - cells.keys()):
                told.append(f"declares no seed {listed(lacks)}: give it those of the others")
            if lacks := sorted(s for s in cells if value(cells[s].id) is None):
                name, wanted = library.partition("@")[0], ",".join(map(str, lacks))
                run = f"`orch run {spec} -w backend={name} -w seed={wanted}`"
                told.append(f"has no result for seed {listed(lacks)}: run {run}")
            for each in told:
                reasons.setdefault(f"{library} {each}", []).append(question.name)
    return [f"{reason} (in {few(names)})" for reason, names in reasons.items()]


# ---------------------------------------------------------------- ledgers, and limits


def ledger_differences(
    questions: Sequence[LibraryQuestion], base: str, library: str
) -> list[dict[str, Any]]:
    """Return the differences between two ledgers in the mathematics of the same cells.

    {"field", "base", "other": its entry in each, "questions"}. Leave out fields with the status
    `exact` in both. A cell that the library refuses has the field `refused`.
    """
    names: dict[tuple[str, str, str], list[str]] = {}
    for question in questions:
        if base not in question.cells or library not in question.cells:
            continue
        try:
            one, other = (_ledger_of(question.any_seed(name)) for name in (base, library))
        except UnsupportedSetting as refusal:
            names.setdefault(("refused", "", str(refusal)), []).append(question.name)
            continue
        for field in [f for f in one if f in other and f.startswith(_MATHEMATICS)]:
            a, b = (f"{e.status}: {e.note}".removesuffix(": ") for e in (one[field], other[field]))
            if a != b and not one[field].status == other[field].status == "exact":
                names.setdefault((field, a, b), []).append(question.name)
    return [
        {"field": field, "base": a, "other": b, "questions": where}
        for (field, a, b), where in names.items()
    ]


def _ledger_of(library_cell: LibraryCell) -> Mapping[str, LedgerEntry]:
    """Return field -> ledger entry. Raise UnsupportedSetting if the library refuses the cell."""
    cell = library_cell.cell
    if cell.scale == "micro":  # trained as its rehearsal
        trainer = plugins.load_embedded("micro")
        cell = (trainer.rehearse(cell) if trainer else None) or cell
    plan = neighbour.translated(plugins.load(cell.settings.backend.name), cell, NOWHERE)
    return {entry.field: entry for entry in plan.ledger}


def limits(questions: Sequence[LibraryQuestion]) -> list[str]:
    """Return one sentence for each thing that rehearsals do not imitate, and for each that was read
    in a library's source and never compared, where it affects these questions."""
    sentences: dict[str, None] = {}
    for question in questions:
        for library in question.cells:
            settings = question.any_seed(library).cell.settings
            meaning = semantics(settings.backend)
            for each in meaning.omits:
                sentences[f"{library}, not imitated: {each}"] = None
            for cause in differing(relevant(meaning.dialect, settings), PLAIN):
                if why := DIFFERENCES[cause].not_compared:
                    title = DIFFERENCES[cause].title
                    sentences[f"{library}, {title} not compared: {why}"] = None
    return list(sentences)


# ---------------------------------------------------------------- sides


@dataclass(frozen=True)
class LibrarySide:
    """Questions with their runs at one scale."""

    name: SideName
    questions: tuple[LibraryQuestion, ...]
    runs: Mapping[str, MeasuredRun]
    """Cell id -> run."""
    metric: str | None
    """The metric of the main result; None before a run has finished."""

    @property
    def libraries(self) -> tuple[str, ...]:
        """Return the libraries of the questions, in order."""
        return tuple(dict.fromkeys(name for q in self.questions for name in q.cells))

    def value(self, metric: str | None = None) -> FinalValue:
        """Return a function from cell id to the final value of a metric (default: the main one)."""
        finals = {
            id_: run.finals.get(metric or self.metric or "") for id_, run in self.runs.items()
        }
        return finals.get


def library_side(
    name: SideName,
    cells: Sequence[LibraryCell],
    records: Sequence[Record],
    scores: Sequence[Score],
    metric: str | None = None,
) -> LibrarySide:
    """Return a side. Its main metric is `metric`, or else the first of IN_DOMAIN that a run has.

    Raise SelectionError if no cell is declared for two libraries, or no run has the metric.
    """
    runs = {run.record.cell.id: run for run in measure(records, scores)}
    measured = {m for run in runs.values() for m in run.finals}
    if metric is not None and measured and metric not in measured:
        raise SelectionError(f"no run measured {metric} (there are: {', '.join(sorted(measured))})")
    chosen = metric or next((m for m in IN_DOMAIN if m in measured), None)
    return LibrarySide(name, tuple(questions(cells)), runs, chosen)


def whole_questions(experiment: Experiment, terms: Sequence[str]) -> list[Cell]:
    """Return the declared cells that the filters of `--where` select, before any is rehearsed.

    Raise SelectionError for a filter by state, which would cut questions apart, and if no cell is
    selected.
    """
    if any("state" in term for term in terms):
        raise SelectionError(
            "--by backend sets whole questions against each other: filter by study, kl, beta, "
            "backend or seed, not by state"
        )
    return selected(experiment.declared, terms, experiment.spec.name)


def read_sides(
    experiment: Experiment,
    cells: Sequence[Cell],
    metric: str | None = None,
    known: tuple[Sequence[Record], Sequence[Score]] | None = None,
) -> Iterator[LibrarySide]:
    """Yield the sides of an experiment that have cells, from the run directories.

    `cells`: declared cells. The first side has this experiment's scale. The second side is read
    only if its folder exists. `known`: records and scores of the first side, if already read. Raise
    SelectionError as `library_side` does.
    """
    spec = experiment.spec
    first: SideName = "predicted" if experiment.scale == "micro" else "observed"
    second: SideName = "observed" if first == "predicted" else "predicted"
    for name in (first, second):
        scale = "micro" if name == "predicted" else "full"
        folder = RunFolder.of(spec.site.runs_dir, spec.name, scale)
        if name == second and not folder.path.exists():
            continue
        side_cells, trained = library_cells(cells, name)
        if not trained:
            continue
        if name == first and known is not None:
            records, scores = known
        else:
            records = collect(trained, folder)
            scores = score_index(trained, spec.evaluation, folder).scores
        yield library_side(name, side_cells, records, scores, metric)


# ---------------------------------------------------------------- as plain data


def library_data(sides: Sequence[LibrarySide], spec: str) -> dict[str, Any]:
    """Return the data that `orch compare --by backend --json` prints, also used for its text.

    The others are compared with the first library. `spec`: the spec's path.
    """
    questions, base = sides[0].questions, sides[0].libraries[0]
    return {
        "base": base,
        "limits": limits(questions),
        "ledgers": {
            library: ledger_differences(questions, base, library)
            for library in sides[0].libraries
            if library != base
        },
        **{side.name: _side_data(side, base, spec) for side in sides},
    }


def _side_data(side: LibrarySide, base: str, spec: str) -> dict[str, Any]:
    """Return scores, differences and missing seeds of one side."""
    measured = {m for run in side.runs.values() for m in run.finals}
    outside = next((m for m in OUT_OF_DOMAIN if m in measured), None)
    return {
        "metric": side.metric,
        "out_of_domain": outside,
        "scores": [
            {
                "question": question.name,
                "library": library,
                "cells": {seed: cell.id for seed, cell in sorted(cells.items())},
                "in_domain": _final_data(side, cells.values(), side.metric),
                "out_of_domain": _final_data(side, cells.values(), outside),
            }
            for question in side.questions
            for library, cells in question.cells.items()
        ],
        "differences": [
            asdict(one) | {"verdict": one.verdict}
            for one in library_differences(side.questions, base, side.value())
        ],
        "missing": missing_seeds(side.questions, side.value(), spec),
    }


def _final_data(
    side: LibrarySide, cells: Iterable[LibraryCell], metric: str | None
) -> dict[str, Any] | None:
    """Return the mean over finished seeds, or None without any. It is cut to its range."""
    if metric is None:
        return None
    value = side.value(metric)
    finished = [v for cell in cells if (v := value(cell.id)) is not None]
    if not finished:
        return None
    return asdict(estimate(finished).within(*range_of(metric)))
