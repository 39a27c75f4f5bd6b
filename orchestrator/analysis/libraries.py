"""Libraries."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from orchestrator import plugins
from orchestrator.analysis.configurations import IN_DOMAIN, OUT_OF_DOMAIN
from orchestrator.analysis.runs import MeasuredRun, is_accuracy, measure
from orchestrator.analysis.stats import ALPHA, Estimate, estimate, holm, one_sided_p, seeds_needed
from orchestrator.analysis.text import counted
from orchestrator.errors import SelectionError, UnsupportedSetting
from orchestrator.identity import digest, drift, identity
from orchestrator.kl.differences import DIFFERENCES, describe, differing
from orchestrator.kl.library_semantics import PLAIN, Dialect, relevant
from orchestrator.records import AttemptPaths, Cell, LedgerEntry, Record, Score
from orchestrator.settings import BackendRef, Settings
from orchestrator.spec.rehearse import semantics


@dataclass(frozen=True)
class LibraryCell:
    """One declared cell, and the id under which it is trained at a scale."""

    cell: Cell
    """As declared."""
    id: str

    @property
    def library(self) -> str:
        return library_name(self.cell.settings.backend)

    @property
    def seed(self) -> int:
        return self.cell.settings.seed

    @property
    def question(self) -> str:
        return question_id(self.cell.settings)


def library_name(backend: BackendRef) -> str:
    """`verl@0.9.1`."""
    return f"{backend.name}@{backend.version}" if backend.version else backend.name


def question_id(settings: Settings) -> str:
    """What is the same for all libraries and seeds, as a digest."""
    return digest(_question(settings))


def _question(settings: Settings) -> dict[str, object]:
    plain = identity(settings)
    return {name: value for name, value in plain.items() if name not in ("backend", "seed")}


@dataclass(frozen=True)
class LibraryQuestion:
    """A cell as every library was asked it: library -> seed -> what was asked."""

    name: str
    asked: Mapping[str, Mapping[int, LibraryCell]]

    def one(self, library: str) -> LibraryCell:
        """Any seed of a library."""
        return next(iter(self.asked[library].values()))


def questions(asked: Sequence[LibraryCell]) -> list[LibraryQuestion]:
    """Every question asked of two libraries or more, in order.

    Raises SelectionError if there is none, saying what the nearest cells differ in.
    """
    libraries = list(dict.fromkeys(each.library for each in asked))
    if len(libraries) < 2:
        raise SelectionError(
            f"all these cells are of {libraries[0] if libraries else 'no library'}: name two "
            "libraries or more on the axis `backend`"
        )
    grouped: dict[str, dict[str, dict[int, LibraryCell]]] = {}
    for each in asked:
        grouped.setdefault(each.question, {}).setdefault(each.library, {})[each.seed] = each
    shared = {key: found for key, found in grouped.items() if len(found) > 1}
    if not shared:
        raise SelectionError(_nearest_text(asked, libraries))
    names = _question_names(
        [next(iter(next(iter(f.values())).values())).cell for f in shared.values()]
    )
    return [
        LibraryQuestion(name, found) for name, found in zip(names, shared.values(), strict=True)
    ]


def _nearest_text(asked: Sequence[LibraryCell], libraries: Sequence[str]) -> str:
    one = next(e for e in asked if e.library == libraries[0])
    others = [e for e in asked if e.library != one.library]
    gaps = [drift(_question(one.cell.settings), _question(e.cell.settings)) for e in others]
    at = min(range(len(gaps)), key=lambda i: len(gaps[i]))
    said = ", ".join(f"{field} ({a} and {b})" for field, (a, b) in list(gaps[at].items())[:6])
    return (
        f"no cell is asked of two libraries: {one.cell.slug} and its nearest, "
        f"{others[at].cell.slug}, differ in {said}. Cells compare where all but the library is "
        "equal: make `backend` an axis of one study, or give both the same recipe"
    )


def _question_names(cells: Sequence[Cell]) -> list[str]:
    """`k1.reward β=0.05`, with whatever else tells these cells apart."""
    shown = ("kl", "beta", "backend", "seed", "backend.version")
    axes = [{k: v for k, v in cell.axes.items() if k not in shown} for cell in cells]
    differ = [k for k in axes[0] if len({a.get(k) for a in axes}) > 1] if axes else []
    studies = len({cell.studies for cell in cells}) > 1
    named = []
    for cell in cells:
        kl = cell.settings.kl
        words = [kl.label if kl.placement is None else f"{kl.label} β={kl.beta:g}"]
        words += [f"{k}={cell.axes[k]}" for k in differ if k in cell.axes]
        words += [",".join(cell.studies)] if studies else []
        named.append(" ".join(words))
    twice = {name for name in named if named.count(name) > 1}
    return [f"{n} ({c.id})" if n in twice else n for n, c in zip(named, cells, strict=True)]


def curves_by_library(
    runs: Mapping[str, MeasuredRun], question: LibraryQuestion, metric: str, points: int = 6
) -> tuple[tuple[int, ...], dict[str, tuple[float, ...]]]:
    """Samples, and per library the mean over its seeds, at progress that every run has reached.

    Progress is counted in rollouts seen, which for equal batches is equal train steps.
    """
    series: dict[str, list[Mapping[int, float]]] = {}
    for library, asked in question.asked.items():
        for each in asked.values():
            run = runs.get(each.id)
            if run is not None and metric in run.series:
                per = rollouts_per_step(run.record.cell.settings)
                series.setdefault(library, []).append(
                    {step * per: v for step, v in run.series[metric].items()}
                )
    every = [set(points_) for rows in series.values() for points_ in rows]
    common = sorted(set.intersection(*every)) if every else []
    last = len(common) - 1
    at = (
        tuple(dict.fromkeys(common[round(i * last / (points - 1))] for i in range(points)))
        if (common)
        else ()
    )
    return at, {
        library: tuple(fmean(row[x] for row in rows) for x in at)
        for library, rows in series.items()
    }


def rollouts_per_step(settings: Settings) -> int:
    """Rollouts of a train step."""
    return (
        settings.batch.num_prompts * settings.rollout.group_size // settings.batch.num_minibatches
    )


MARGIN = 0.03
"""Accuracies closer than this are called indistinguishable, where the interval says so."""


FinalValue = Callable[[str], float | None]
"""Cell id -> final value of the metric that is compared; None: not there."""


@dataclass(frozen=True)
class LibraryDifference:
    """`right` minus `left` on one question, paired on seeds."""

    question: str
    left: str
    right: str
    effect: Estimate | None
    """None: no seed is finished in both."""
    same: bool
    """One training run under both names."""
    p: float = 1.0
    p_corrected: float = 1.0

    @property
    def verdict(self) -> str:
        """`same mathematics`, `differs`, `indistinguishable` (surely closer than MARGIN, as where
        the 95 % interval lies within it),
        or `underpowered` with the seeds that would tell."""
        if self.same:
            return "same mathematics"
        if self.effect is None:
            return "not comparable yet"
        if self.p_corrected < ALPHA:
            return "differs"
        if (
            max(one_sided_p(self.effect, -MARGIN)[0], one_sided_p(self.effect, MARGIN)[1])
            < ALPHA / 2
        ):
            return "indistinguishable"
        more = self._more_seeds()
        return f"underpowered ({more})" if more else "underpowered"

    def _more_seeds(self) -> str:
        """How many seeds more would tell, if effect and spread stay as seen."""
        effect = self.effect
        if effect is None or effect.n < 2:
            return "2 seeds or more are needed"
        apart = max(abs(effect.mean), MARGIN - abs(effect.mean))
        needed = seeds_needed(apart, effect.sd)
        return f"about {counted(max(1, needed - effect.n), 'more seed')}" if needed else ""


def library_differences(
    found: Sequence[LibraryQuestion], base: str, value: FinalValue
) -> list[LibraryDifference]:
    """Every library against `base`, question by question, with Holm's correction over all."""
    listed = [
        _difference(question, base, library, value)
        for question in found
        if base in question.asked
        for library in question.asked
        if library != base
    ]
    return with_corrected_p(listed)


def overall_differences(
    found: Sequence[LibraryQuestion], value: FinalValue
) -> list[LibraryDifference]:
    """Every pair of libraries, over all questions both were asked: the mean over them, by seed."""
    libraries = list(dict.fromkeys(name for q in found for name in q.asked))
    listed = []
    for at, left in enumerate(libraries):
        for right in libraries[at + 1 :]:
            both = [q for q in found if left in q.asked and right in q.asked]
            same = bool(both) and all(_is_one_run(q, left, right) for q in both)
            values = [_by_seed(q, left, right, value) for q in both]
            seeds = set.intersection(*(set(v) for v in values)) if values else set()
            effect = estimate(fmean(v[s] for v in values) for s in seeds) if seeds else None
            name = f"all {len(both)} questions"
            listed.append(LibraryDifference(name, left, right, effect, same, _two_sided_p(effect)))
    return with_corrected_p(listed)


def with_corrected_p(listed: Sequence[LibraryDifference]) -> list[LibraryDifference]:
    """With p-values corrected over those that were measured."""
    measured = [gap for gap in listed if gap.effect is not None and not gap.same]
    told = dict(zip(map(id, measured), holm([gap.p for gap in measured]), strict=True))
    return [replace(gap, p_corrected=told.get(id(gap), 1.0)) for gap in listed]


def _difference(
    question: LibraryQuestion, left: str, right: str, value: FinalValue
) -> LibraryDifference:
    by_seed = _by_seed(question, left, right, value)
    effect = estimate(by_seed.values()) if by_seed else None
    same = _is_one_run(question, left, right)
    return LibraryDifference(question.name, left, right, effect, same, _two_sided_p(effect))


def _two_sided_p(effect: Estimate | None) -> float:
    return 1.0 if effect is None or effect.n < 2 else min(1.0, 2 * min(one_sided_p(effect, 0.0)))


def _is_one_run(question: LibraryQuestion, left: str, right: str) -> bool:
    one, other = question.asked[left], question.asked[right]
    return all(one[s].id == other[s].id for s in one.keys() & other.keys())


def _by_seed(
    question: LibraryQuestion, left: str, right: str, value: FinalValue
) -> dict[int, float]:
    one, other = question.asked[left], question.asked[right]
    pairs = {s: (value(one[s].id), value(other[s].id)) for s in sorted(one.keys() & other.keys())}
    return {s: b - a for s, (a, b) in pairs.items() if a is not None and b is not None}


def final_estimate(
    question: LibraryQuestion, library: str, value: FinalValue, *, is_share: bool = False
) -> Estimate | None:
    """A library's mean over the seeds that are finished; a share lies in [0, 1]."""
    values = [value(each.id) for each in question.asked[library].values()]
    known = [v for v in values if v is not None]
    if not known:
        return None
    found = estimate(known)
    return found.within(0.0, 1.0) if is_share else found


def missing_seeds(found: Iterable[LibraryQuestion], value: FinalValue, spec: str) -> list[str]:
    """Sentences: seeds that a library lacks and another has, and what makes them comparable."""
    said: dict[tuple[str, str], list[str]] = {}
    for question in found:
        seeds = sorted({seed for each in question.asked.values() for seed in each})
        for library, each in question.asked.items():
            if lacks := [s for s in seeds if s not in each]:
                what = f"declares no seed {_listed(lacks)}: give it the seeds of the others in the "
                said.setdefault((library, what + "spec"), []).append(question.name)
            if lacks := [s for s in seeds if s in each and value(each[s].id) is None]:
                name = library.partition("@")[0]
                wanted = ",".join(map(str, lacks))
                what = f"has no result for seed {_listed(lacks)}: run `orch run {spec} -w backend="
                said.setdefault((library, f"{what}{name} -w seed={wanted}`"), []).append(
                    question.name
                )
    return [
        f"{library} {what} (in {_first_names(where)})" for (library, what), where in said.items()
    ]


def _first_names(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _listed(seeds: Sequence[int]) -> str:
    return " and ".join([", ".join(map(str, seeds[:-1])), str(seeds[-1])]).removeprefix(" and ")


def final_values_by_cell(runs: Iterable[MeasuredRun], metric: str) -> FinalValue:
    """Final values of a metric by cell id."""
    by_id = {run.record.cell.id: run.finals.get(metric) for run in runs}
    return by_id.get


BETA_EFFECTIVE = "train/beta_effective"
_NOWHERE = AttemptPaths(Path("/plan"), Path("/attempt"), Path("/checkpoints"))
_ABOUT = ("kl.", "loss.", "advantage.", "optimizer.", "batch.", "max_staleness_steps", "seed")


@dataclass(frozen=True)
class DialectDifference:
    """One cause in which a library parts from the base, and the questions it matters to."""

    cause: str
    title: str
    base: str
    other: str
    questions: tuple[str, ...]


def relevant_dialect(asked: LibraryCell) -> Dialect:
    """What of a library's dialect matters to a cell."""
    settings = asked.cell.settings
    return relevant(semantics(settings.backend).dialect, settings)


def differing_causes(one: LibraryCell, other: LibraryCell) -> list[str]:
    """Causes in which two libraries differ on a cell; not those in which they are alike and which
    another cause keeps from mattering in one (a bound of a ratio that is 1)."""
    apart = differing(*(semantics(x.cell.settings.backend).dialect for x in (one, other)))
    return [
        each for each in differing(relevant_dialect(one), relevant_dialect(other)) if each in apart
    ]


def dialect_differences(
    found: Sequence[LibraryQuestion], base: str, library: str
) -> list[DialectDifference]:
    """Every cause in which two libraries differ on these questions."""
    said_of: dict[tuple[str, str, str], list[str]] = {}
    for question in found:
        if base not in question.asked or library not in question.asked:
            continue
        both = question.one(base), question.one(library)
        one, other = map(relevant_dialect, both)
        for cause in differing_causes(*both):
            key = (cause, describe(one, cause), describe(other, cause))
            said_of.setdefault(key, []).append(question.name)
    return [
        DialectDifference(cause, DIFFERENCES[cause].title, a, b, tuple(where))
        for (cause, a, b), where in said_of.items()
    ]


def not_imitated(found: Sequence[LibraryQuestion], library: str) -> tuple[str, ...]:
    """What of a library the rehearsal does not imitate."""
    backend = next(q.one(library) for q in found if library in q.asked).cell.settings.backend
    return semantics(backend).omits


def not_compared(found: Sequence[LibraryQuestion]) -> list[str]:
    """Of what matters to these questions: what of the libraries was read in their sources, and not
    held against their own functions by running them."""
    read: dict[str, tuple[str, ...]] = {}
    for question in found:
        for library in question.asked:
            for cause in differing(relevant_dialect(question.one(library)), PLAIN):
                if DIFFERENCES[cause].not_compared and library not in read.get(cause, ()):
                    read[cause] = (*read.get(cause, ()), library)
    return [
        f"{DIFFERENCES[cause].title} of {', '.join(libraries)}, not compared: "
        f"{DIFFERENCES[cause].not_compared}"
        for cause, libraries in read.items()
    ]


@dataclass(frozen=True)
class LedgerDifference:
    """One field of which two ledgers do not say the same."""

    field: str
    base: str
    other: str
    questions: tuple[str, ...]


def ledger_differences(
    found: Sequence[LibraryQuestion], base: str, library: str
) -> list[LedgerDifference]:
    """Where two libraries' ledgers say different things of the mathematics of the same cell, at
    least one of them something other than `exact`."""
    said_of: dict[tuple[str, str, str], list[str]] = {}
    for question in found:
        if base not in question.asked or library not in question.asked:
            continue
        one, other = (_ledger_of(question.one(name)) for name in (base, library))
        for field in [f for f in one if f in other and f.startswith(_ABOUT)]:
            a, b = (_ledger_text(entry) for entry in (one[field], other[field]))
            if a != b and not one[field].status == other[field].status == "exact":
                said_of.setdefault((field, a, b), []).append(question.name)
    return [LedgerDifference(f, a, b, tuple(where)) for (f, a, b), where in said_of.items()]


def _ledger_text(entry: LedgerEntry) -> str:
    return f"{entry.status}: {entry.note}" if entry.note else entry.status


def _ledger_of(asked: LibraryCell) -> Mapping[str, LedgerEntry]:
    """Field -> entry; empty for a cell that the library refuses."""
    cell = asked.cell
    if cell.scale == "micro":  # trained as its rehearsal
        rehearsed = plugins.load("micro").rehearse(cell)
        cell = rehearsed or cell
    try:
        plan = plugins.load(cell.settings.backend.name).translate(cell, _NOWHERE)
    except UnsupportedSetting:
        return {}
    return {entry.field: entry for entry in plan.ledger}


def refusals(found: Sequence[LibraryQuestion], library: str) -> dict[str, str]:
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
            plugins.load(cell.settings.backend.name).translate(cell, _NOWHERE)
        except UnsupportedSetting as error:
            told[question.name] = str(error)
    return told


def beta_effective(
    runs: Mapping[str, MeasuredRun], question: LibraryQuestion, library: str
) -> Estimate | None:
    """Mean over the steps of each seed; None where nothing measured it."""
    means = []
    for asked in question.asked[library].values():
        run = runs.get(asked.id)
        values = list(run.series.get(BETA_EFFECTIVE, {}).values()) if run else []
        if values:
            means.append(sum(values) / len(values))
    return estimate(means) if means else None


CURVES = ("eval/accuracy_in_domain", "train/reward_mean", "eval/in_domain/mean")
SideName = Literal["predicted", "observed"]


@dataclass(frozen=True)
class LibrarySide:
    """Questions with the runs that answer them at one scale."""

    name: SideName
    questions: tuple[LibraryQuestion, ...]
    runs: Mapping[str, MeasuredRun]
    """By cell id."""
    metric: str | None
    """The main result; None before anything finished."""

    @property
    def libraries(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for q in self.questions for name in q.asked))

    def value(self, metric: str | None = None) -> FinalValue:
        """Final values by cell id."""
        return final_values_by_cell(self.runs.values(), metric or self.metric or "")


def library_side(
    name: SideName,
    asked: Sequence[LibraryCell],
    records: Sequence[Record],
    scores: Sequence[Score],
    metric: str | None = None,
) -> LibrarySide:
    """A side, its main metric the preferred one that any run has, or the one asked for.

    Raises SelectionError where no cell is asked of two libraries.
    """
    runs = {run.record.cell.id: run for run in measure(records, scores)}
    known = {m for run in runs.values() for m in run.finals}
    if metric is not None and known and metric not in known:
        raise SelectionError(f"no run measured {metric} (there are: {', '.join(sorted(known))})")
    chosen = metric or next((m for m in IN_DOMAIN if m in known), None)
    return LibrarySide(name, tuple(questions(asked)), runs, chosen)


def side_data(found: LibrarySide, base: str, spec: str) -> dict[str, Any]:
    """Everything a page says of one side, as plain data."""
    known = {m for run in found.runs.values() for m in run.finals}
    outside = next((m for m in OUT_OF_DOMAIN if m in known), None)
    value = found.value()
    return {
        "metric": found.metric,
        "out_of_domain": outside,
        "base": base,
        "scores": [
            _score_data(found, q, library, outside) for q in found.questions for library in q.asked
        ],
        "curves": [_curve_data(found, q) for q in found.questions],
        "differences": [
            difference_data(gap) for gap in library_differences(found.questions, base, value)
        ],
        "overall": [difference_data(gap) for gap in overall_differences(found.questions, value)],
        "missing": missing_seeds(found.questions, value, spec),
    }


def _score_data(
    found: LibrarySide, question: LibraryQuestion, library: str, outside: str | None
) -> dict[str, Any]:
    asked = question.asked[library]
    beta = question.one(library).cell.settings.kl.beta
    share = found.metric is not None and is_accuracy(found.metric)
    shared = [
        name
        for name, others in question.asked.items()
        if name != library
        and any(others[s].id == asked[s].id for s in asked.keys() & others.keys())
    ]
    return {
        "question": question.name,
        "library": library,
        "seeds": len(asked),
        "in_domain": estimate_data(
            final_estimate(question, library, found.value(), is_share=share)
        ),
        "out_of_domain": estimate_data(
            final_estimate(question, library, found.value(outside), is_share=True)
            if outside
            else None
        ),
        "beta": beta if question.one(library).cell.settings.kl.placement else None,
        "beta_effective": estimate_data(beta_effective(found.runs, question, library)),
        "one_run_with": shared,
    }


def _curve_data(found: LibrarySide, question: LibraryQuestion) -> dict[str, Any]:
    for metric in CURVES:
        at, curves = curves_by_library(found.runs, question, metric)
        if at:
            return {"question": question.name, "metric": metric, "samples": at, "curves": curves}
    return {"question": question.name, "metric": None, "samples": (), "curves": {}}


def difference_data(gap: LibraryDifference) -> dict[str, Any]:
    """A difference as plain data."""
    return {
        "question": gap.question,
        "left": gap.left,
        "right": gap.right,
        "difference": estimate_data(gap.effect),
        "p_corrected": gap.p_corrected,
        "verdict": gap.verdict,
    }


def estimate_data(found: Estimate | None) -> dict[str, Any] | None:
    return None if found is None else asdict(found)


def meaning_data(found: Sequence[LibraryQuestion], base: str) -> list[dict[str, Any]]:
    """What each library means differently than the base, and what its rehearsal leaves out."""
    libraries = dict.fromkeys(name for q in found for name in q.asked)
    return [
        {
            "library": library,
            "differs": [asdict(m) for m in dialect_differences(found, base, library)],
            "ledger": [asdict(g) for g in ledger_differences(found, base, library)],
            "omits": not_imitated(found, library),
            "refused": refusals(found, library),
        }
        for library in libraries
        if library != base
    ]
