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
from itertools import combinations
from statistics import fmean
from typing import Any, Literal

from orchestrator import plugins
from orchestrator.analysis.configurations import IN_DOMAIN, OUT_OF_DOMAIN
from orchestrator.analysis.runs import MeasuredRun, is_accuracy, measure
from orchestrator.analysis.stats import (
    ALPHA,
    Estimate,
    estimate,
    holm,
    one_sided_p,
    seeds_to_decide,
    two_sided_p,
)
from orchestrator.analysis.text import counted, few, listed
from orchestrator.errors import SelectionError, UnsupportedSetting
from orchestrator.evaluate import score_index
from orchestrator.identity import digest, drift, identity
from orchestrator.kl.library_semantics import (
    DIFFERENCES,
    PLAIN,
    Dialect,
    describe,
    differing,
    relevant,
)
from orchestrator.library import neighbour
from orchestrator.library.neighbour import NOWHERE, library_name
from orchestrator.records import Cell, LedgerEntry, Record, Score
from orchestrator.rundir import RunFolder
from orchestrator.runs.collect import collect
from orchestrator.runs.experiment import Experiment
from orchestrator.settings import Settings
from orchestrator.spec.rehearse import rehearse, semantics
from orchestrator.spec.select import matches, parse

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
    others = [cell for cell in cells if cell.library != first.library]
    drifts = [
        drift(_question_settings(first.cell.settings), _question_settings(other.cell.settings))
        for other in others
    ]
    nearest = min(range(len(drifts)), key=lambda i: len(drifts[i]))
    fields = ", ".join(f"{field} ({a} and {b})" for field, (a, b) in [*drifts[nearest].items()][:6])
    return (
        f"no cell is asked of two libraries: {first.cell.slug} and its nearest, "
        f"{others[nearest].cell.slug}, differ in {fields}. Cells compare where all but the library "
        "is equal: make `backend` an axis of one study, or give both the same recipe"
    )


def _question_names(cells: Sequence[Cell]) -> list[str]:
    """Return `k1.reward β=0.05`, with the other axes in which these cells differ."""
    named_already = ("kl", "beta", "backend", "seed", "backend.version")
    axes = [{k: v for k, v in cell.axes.items() if k not in named_already} for cell in cells]
    differ = [k for k in axes[0] if len({a.get(k) for a in axes}) > 1] if axes else []
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
    effect: Estimate | None
    """None if no seed has finished in both libraries."""
    same: bool
    """True if both libraries share the training runs."""
    p: float = 1.0
    p_corrected: float = 1.0

    @property
    def verdict(self) -> str:
        """Return `same mathematics`, `differs`, `indistinguishable` or `open`.

        Return `not comparable yet` if no seed has finished in both. `indistinguishable`: two
        one-sided tests show a difference smaller than MARGIN. `open` includes the number of
        further seeds that would decide.
        """
        if self.same:
            return "same mathematics"
        if self.effect is None:
            return "not comparable yet"
        if self.p_corrected < ALPHA:
            return "differs"
        beyond = one_sided_p(self.effect, -MARGIN)[0], one_sided_p(self.effect, MARGIN)[1]
        if max(beyond) < ALPHA / 2:
            return "indistinguishable"
        more = self._more_seeds()
        return f"open ({more})" if more else "open"

    def _more_seeds(self) -> str:
        """Return how many further seeds would decide if effect and spread do not change."""
        effect = self.effect
        if effect is None or effect.n < 2:
            return "2 seeds or more are needed"
        distance = max(abs(effect.mean), MARGIN - abs(effect.mean))
        needed = seeds_to_decide(distance, effect.sd, ALPHA)
        return f"about {counted(max(1, needed - effect.n), 'more seed')}" if needed else ""


def library_differences(
    questions: Sequence[LibraryQuestion], base: str, value: FinalValue
) -> list[LibraryDifference]:
    """Return the difference of every library to `base` on each question, corrected by Holm."""
    return _corrected(
        _difference(question.name, [question], base, library, value)
        for question in questions
        if base in question.cells
        for library in question.cells
        if library != base
    )


def overall_differences(
    questions: Sequence[LibraryQuestion], value: FinalValue
) -> list[LibraryDifference]:
    """Return the difference of every pair of libraries, averaged over their common questions."""
    libraries = dict.fromkeys(name for q in questions for name in q.cells)
    pairs = [(pair, list(_of_both(questions, *pair))) for pair in combinations(libraries, 2)]
    return _corrected(
        _difference(f"all {len(both)} questions", both, *pair, value) for pair, both in pairs
    )


def _difference(
    name: str, questions: Sequence[LibraryQuestion], left: str, right: str, value: FinalValue
) -> LibraryDifference:
    """Return the mean difference over these questions, paired on the seeds that all have."""
    by_seed = [_by_seed(question, left, right, value) for question in questions]
    seeds = sorted(set.intersection(*map(set, by_seed))) if by_seed else []
    effect = estimate(fmean(v[s] for v in by_seed) for s in seeds) if seeds else None
    same = bool(questions) and all(_is_one_run(q, left, right) for q in questions)
    return LibraryDifference(name, left, right, effect, same, two_sided_p(effect))


def _corrected(found: Iterable[LibraryDifference]) -> list[LibraryDifference]:
    """Return the differences with p-values corrected by Holm over the measured ones."""
    differences = list(found)
    measured = [one for one in differences if one.effect is not None and not one.same]
    corrected = dict(zip(map(id, measured), holm([one.p for one in measured]), strict=True))
    return [replace(one, p_corrected=corrected.get(id(one), 1.0)) for one in differences]


def missing_seeds(questions: Iterable[LibraryQuestion], value: FinalValue, spec: str) -> list[str]:
    """Return one sentence for each library that lacks seeds of another, with the command to run."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for question in questions:
        seeds = sorted({seed for cells in question.cells.values() for seed in cells})
        for library, cells in question.cells.items():
            if lacks := [s for s in seeds if s not in cells]:
                reason = (
                    f"declares no seed {listed(lacks)}: give it the seeds of the others in the spec"
                )
                reasons.setdefault((library, reason), []).append(question.name)
            if lacks := [s for s in seeds if s in cells and value(cells[s].id) is None]:
                name, wanted = library.partition("@")[0], ",".join(map(str, lacks))
                reason = (
                    f"has no result for seed {listed(lacks)}: run "
                    f"`orch run {spec} -w backend={name} -w seed={wanted}`"
                )
                reasons.setdefault((library, reason), []).append(question.name)
    return [f"{library} {reason} (in {few(names)})" for (library, reason), names in reasons.items()]


def _is_one_run(question: LibraryQuestion, left: str, right: str) -> bool:
    one, other = question.cells[left], question.cells[right]
    return all(one[s].id == other[s].id for s in one.keys() & other.keys())


def _by_seed(
    question: LibraryQuestion, left: str, right: str, value: FinalValue
) -> dict[int, float]:
    """Return seed -> right minus left, for the seeds that have finished in both."""
    one, other = question.cells[left], question.cells[right]
    pairs = {s: (value(one[s].id), value(other[s].id)) for s in sorted(one.keys() & other.keys())}
    return {s: b - a for s, (a, b) in pairs.items() if a is not None and b is not None}


# ---------------------------------------------------------------- meanings of the libraries


def relevant_dialect(cell: LibraryCell) -> Dialect:
    """Return the parts of a library's dialect that affect a cell."""
    settings = cell.cell.settings
    return relevant(semantics(settings.backend).dialect, settings)


def differing_causes(one: LibraryCell, other: LibraryCell) -> list[str]:
    """Return the causes by which two libraries differ on a cell.

    Leave out a cause with equal values in both, even if another cause makes it irrelevant in only
    one of them (a bound on a ratio that is 1).
    """
    apart = differing(*(semantics(x.cell.settings.backend).dialect for x in (one, other)))
    causes = differing(relevant_dialect(one), relevant_dialect(other))
    return [cause for cause in causes if cause in apart]


def dialect_differences(
    questions: Sequence[LibraryQuestion], base: str, library: str
) -> list[dict[str, Any]]:
    """Return every cause by which two libraries' mathematics differ on these questions.

    {"cause", "title", "base", "other": its meaning in each, "questions": those that it affects}
    """
    names: dict[tuple[str, str, str], list[str]] = {}
    for question in _of_both(questions, base, library):
        cells = question.any_seed(base), question.any_seed(library)
        one, other = map(relevant_dialect, cells)
        for cause in differing_causes(*cells):
            key = (cause, describe(one, cause), describe(other, cause))
            names.setdefault(key, []).append(question.name)
    titled = ((cause, DIFFERENCES[cause].title, a, b) for cause, a, b in names)
    keys = ("cause", "title", "base", "other", "questions")
    return [
        dict(zip(keys, (*words, where), strict=True))
        for words, where in zip(titled, names.values(), strict=True)
    ]


def ledger_differences(
    questions: Sequence[LibraryQuestion], base: str, library: str
) -> list[dict[str, Any]]:
    """Return the differences between two ledgers in the mathematics of the same cells.

    {"field", "base", "other": its entry in each, "questions"}. Leave out fields with the status
    `exact` in both.
    """
    names: dict[tuple[str, str, str], list[str]] = {}
    for question in _of_both(questions, base, library):
        one, other = (_ledger_of(question.any_seed(name)) for name in (base, library))
        for field in [f for f in one if f in other and f.startswith(_MATHEMATICS)]:
            a, b = (_ledger_text(entry) for entry in (one[field], other[field]))
            if a != b and not one[field].status == other[field].status == "exact":
                names.setdefault((field, a, b), []).append(question.name)
    return [
        {"field": field, "base": a, "other": b, "questions": where}
        for (field, a, b), where in names.items()
    ]


def not_imitated(questions: Sequence[LibraryQuestion], library: str) -> tuple[str, ...]:
    """Return one sentence for each behaviour of a library that rehearsals do not imitate."""
    cell = next(q.any_seed(library) for q in questions if library in q.cells)
    return semantics(cell.cell.settings.backend).omits


def limits_of_base(questions: Sequence[LibraryQuestion], base: str) -> list[str]:
    """Return one sentence for each thing that is not compared, or not imitated of the base."""
    omitted = (f"{base}, not imitated: {each}" for each in not_imitated(questions, base))
    return [*not_compared(questions), *omitted]


def not_compared(questions: Sequence[LibraryQuestion]) -> list[str]:
    """Return one sentence for each cause that was read in a library's source and never run.

    Only causes that affect these questions count.
    """
    libraries: dict[str, tuple[str, ...]] = {}
    for question in questions:
        for library in question.cells:
            for cause in differing(relevant_dialect(question.any_seed(library)), PLAIN):
                if DIFFERENCES[cause].not_compared and library not in libraries.get(cause, ()):
                    libraries[cause] = (*libraries.get(cause, ()), library)
    return [
        f"{DIFFERENCES[cause].title} of {', '.join(names)}, not compared: "
        f"{DIFFERENCES[cause].not_compared}"
        for cause, names in libraries.items()
    ]


def refusals(questions: Sequence[LibraryQuestion], library: str) -> dict[str, str]:
    """Return question -> the library's reason, for cells that it cannot run.

    The rehearsal of such a cell shows how the library would train it.
    """
    sentences = {}
    for question in questions:
        if library not in question.cells:
            continue
        cell = question.any_seed(library).cell
        if cell.scale == "micro":
            continue
        try:
            neighbour.translated(plugins.load(cell.settings.backend.name), cell, NOWHERE)
        except UnsupportedSetting as error:
            sentences[question.name] = str(error)
    return sentences


def _of_both(
    questions: Sequence[LibraryQuestion], base: str, library: str
) -> Iterator[LibraryQuestion]:
    return (q for q in questions if base in q.cells and library in q.cells)


def _ledger_text(entry: LedgerEntry) -> str:
    return f"{entry.status}: {entry.note}" if entry.note else entry.status


def _ledger_of(library_cell: LibraryCell) -> Mapping[str, LedgerEntry]:
    """Return field -> ledger entry, or an empty mapping if the library refuses the cell."""
    cell = library_cell.cell
    if cell.scale == "micro":  # trained as its rehearsal
        trainer = plugins.load_embedded("micro")
        cell = (trainer.rehearse(cell) if trainer else None) or cell
    try:
        plan = neighbour.translated(plugins.load(cell.settings.backend.name), cell, NOWHERE)
    except UnsupportedSetting:
        return {}
    return {entry.field: entry for entry in plan.ledger}


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
    selection = parse(terms)
    if any("state" in term for term in terms):
        raise SelectionError(
            "--by backend sets whole questions against each other: filter by study, kl, beta, "
            "backend or seed, not by state"
        )
    chosen = [cell for cell in experiment.declared if matches(selection, cell)]
    if not chosen:
        raise SelectionError(f"--where {' '.join(terms)} selects no cell")
    return chosen


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


def choose_base(side: LibrarySide, library: str | None) -> str:
    """Return the library that the others are compared with: the named one, or else the first.

    `library`: a name with or without its release. Raise SelectionError unless it matches exactly
    one library.
    """
    if library is None:
        return side.libraries[0]
    hits = [name for name in side.libraries if library in (name, name.partition("@")[0])]
    if len(hits) != 1:
        raise SelectionError(
            f"--against {library} names {'no' if not hits else 'more than one'} library of this "
            f"comparison (there are: {', '.join(side.libraries)})"
        )
    return hits[0]


# ---------------------------------------------------------------- as plain data


def library_data(experiment: Experiment, sides: Sequence[LibrarySide], base: str) -> dict[str, Any]:
    """Return the data that `orch compare --by backend --json` prints, also used for its text."""
    questions = sides[0].questions
    source = experiment.spec.source or experiment.spec.name
    return {
        "experiment": experiment.spec.name,
        "base": base,
        "not_compared": limits_of_base(questions, base),
        "meaning": meaning_data(questions, base),
        **{side.name: side_data(side, base, source) for side in sides},
    }


def meaning_data(questions: Sequence[LibraryQuestion], base: str) -> list[dict[str, Any]]:
    """Return the differences of each other library from the base.

    Each has the differing causes, the differing fields of the ledgers, the behaviour that is not
    imitated, and the refused cells.
    """
    libraries = dict.fromkeys(name for q in questions for name in q.cells)
    return [
        {
            "library": library,
            "differs": dialect_differences(questions, base, library),
            "ledger": ledger_differences(questions, base, library),
            "omits": not_imitated(questions, library),
            "refused": refusals(questions, library),
        }
        for library in libraries
        if library != base
    ]


def side_data(side: LibrarySide, base: str, spec: str) -> dict[str, Any]:
    """Return scores, differences and missing seeds of one side. `spec`: the spec's path."""
    measured = {m for run in side.runs.values() for m in run.finals}
    outside = next((m for m in OUT_OF_DOMAIN if m in measured), None)
    value = side.value()
    return {
        "metric": side.metric,
        "out_of_domain": outside,
        "base": base,
        "scores": [
            _score_data(side, q, library, outside) for q in side.questions for library in q.cells
        ],
        "differences": [
            _difference_data(one) for one in library_differences(side.questions, base, value)
        ],
        "overall": [_difference_data(one) for one in overall_differences(side.questions, value)],
        "missing": missing_seeds(side.questions, value, spec),
    }


def _score_data(
    side: LibrarySide, question: LibraryQuestion, library: str, outside: str | None
) -> dict[str, Any]:
    cells = question.cells[library]
    kl = question.any_seed(library).cell.settings.kl
    return {
        "question": question.name,
        "library": library,
        "seeds": len(cells),
        "in_domain": _final_data(side, cells.values(), side.metric),
        "out_of_domain": _final_data(side, cells.values(), outside),
        "beta": kl.beta if kl.placement else None,
    }


def _final_data(
    side: LibrarySide, cells: Iterable[LibraryCell], metric: str | None
) -> dict[str, Any] | None:
    """Return the mean over finished seeds, or None without any. A share is cut to [0, 1]."""
    if metric is None:
        return None
    value = side.value(metric)
    finished = [v for cell in cells if (v := value(cell.id)) is not None]
    if not finished:
        return None
    final = estimate(finished)
    return asdict(final.within(0.0, 1.0) if is_accuracy(metric) else final)


def _difference_data(difference: LibraryDifference) -> dict[str, Any]:
    return {
        "question": difference.question,
        "left": difference.left,
        "right": difference.right,
        "difference": None if difference.effect is None else asdict(difference.effect),
        "p_corrected": difference.p_corrected,
        "verdict": difference.verdict,
    }
