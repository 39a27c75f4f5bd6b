"""Results of searches, read from the journal: the best trial, its uncertainty, the Pareto front."""

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple

from orchestrator.analysis.runs import measure
from orchestrator.analysis.stats import ALPHA, Estimate, estimate, holm, one_sided_p, t_quantile
from orchestrator.errors import OrchError
from orchestrator.evaluate import read_scores
from orchestrator.records import Cell, Record, Score
from orchestrator.rundir import RunFolder
from orchestrator.runs.collect import collect
from orchestrator.runs.experiment import Experiment
from orchestrator.runs.state import read_state
from orchestrator.search.design import Search, read_back
from orchestrator.search.journal import SearchJournal
from orchestrator.search.optimum import Recommended, recommend

# ------------------------------------------------------------------ one trial


@dataclass(frozen=True)
class TrialResult:
    """One trial, ended or running."""

    number: int
    state: str
    """COMPLETE, PRUNED, FAIL or RUNNING."""
    params: Mapping[str, Any]
    """Field -> its value in the trial."""
    values: tuple[float, ...] | None
    """One value per objective: the mean over seeds, or the value of `if_failed`."""
    seeds: Mapping[int, tuple[float, ...]]
    """Seed -> values; empty if nothing was measured."""
    cells: tuple[str, ...]
    reused: bool
    """True if the trial is reused from the spec's grid."""
    why: str
    """The reason why it has no result; empty if it has one."""
    gpu_hours: float
    cpu_hours: float


def trial_result(search: Search, frozen: Any) -> TrialResult:
    """Read one of Optuna's trials."""
    attributes = frozen.user_attrs
    gpu_hours, cpu_hours = hours_of_trial(search, frozen)
    return TrialResult(
        number=frozen.number,
        state=frozen.state.name,
        params=search.values(frozen.params),
        values=tuple(frozen.values) if frozen.state.name == "COMPLETE" else None,
        seeds={int(seed): tuple(own) for seed, own in attributes.get("seeds", {}).items()},
        cells=tuple(attributes.get("cells", ())),
        reused=bool(attributes.get("reused")),
        why=attributes.get("why", ""),
        gpu_hours=gpu_hours,
        cpu_hours=cpu_hours,
    )


def is_own(frozen: Any) -> bool:
    """Return True for a trial that the search itself began.

    Other trials are reused from the grid, or their controller died before they had parameters
    (attribute `unborn` in journals).
    """
    return not (frozen.user_attrs.get("unborn") or frozen.user_attrs.get("reused"))


def objective_values(
    search: Search, records: Sequence[Record], scores: Iterable[Score]
) -> tuple[list[float], dict[str, list[float]], str]:
    """Return the mean over seeds of each objective, the values of each seed, and a sentence.

    The sentence is the reason why the values are missing. It is empty if they exist.
    """
    runs = measure(records, scores)
    seeds: dict[str, list[float]] = {}
    for run in runs:
        values = [objective.value(run.finals) for objective in search.objectives]
        for objective, value in zip(search.objectives, values, strict=True):
            if not math.isfinite(value):
                missing = objective.missing(run.finals)
                fault = f"has no final {missing[0]}" if missing else "is not finite"
                return [], {}, f"{objective.text} of {run.record.cell.slug} {fault}"
        seeds[str(run.seed)] = values
    means = [math.fsum(column) / len(runs) for column in zip(*seeds.values(), strict=True)]
    return means, seeds, ""


def hours(cells: Iterable[Cell], folder: RunFolder) -> list[float]:
    """Return the GPU-hours and CPU-hours of all attempts at these cells that have ended."""
    exits = [
        ended
        for cell in cells
        for attempt in folder.cell(cell).attempts()
        if (ended := attempt.read_exit()) is not None
    ]
    return [sum(e.gpu_hours for e in exits), sum(e.cpu_seconds for e in exits) / 3600]


def hours_of_trial(search: Search, frozen: Any) -> list[float]:
    """Return GPU-hours and CPU-hours of one of Optuna's trials.

    The jobs of a pruned trial record their hours after the trial has ended. So the run directories
    of such a trial are read again.
    """
    spent: list[float] = frozen.user_attrs.get("spent", [0.0, 0.0])
    if frozen.state.name != "PRUNED" or not frozen.user_attrs.get("cells"):
        return spent
    cells = search.cells(frozen.params, search.tune.seeds)
    return [max(pair) for pair in zip(spent, hours(cells, search.experiment.folder), strict=True)]


# ------------------------------------------------------------------ one search


@dataclass(frozen=True)
class SearchOutcome:
    """A search and its trials."""

    search: Search
    trials: tuple[TrialResult, ...]
    importance: Mapping[str, float]
    """Field -> its share in what sets the best trials apart (PED-ANOVA), for the first objective;
    empty if it cannot be computed."""
    confirmed: Mapping[int, tuple[float, ...]]
    """Fresh seed -> objective values of the chosen configuration."""

    @property
    def measured(self) -> list[TrialResult]:
        """Return the completed trials that have measured values."""
        return [trial for trial in self.trials if trial.state == "COMPLETE" and trial.seeds]

    @property
    def best(self) -> TrialResult | None:
        """Return the trial with the best mean, the earlier one of equals.

        None with several objectives, or before a trial was measured.
        """
        if len(self.search.objectives) > 1:
            return None
        sign = self.search.objectives[0].sign
        return max(
            self.measured, key=lambda t: (sign * (t.values or (0.0,))[0], -t.number), default=None
        )

    @cached_property
    def recommended(self) -> Recommended | None:
        """Return the optimum of a smooth curve through all trials.

        None if there is more than one field or objective, the field is no range, or too few
        values were measured.
        """
        space, objectives = self.search.space, self.search.objectives
        if len(space) > 1 or len(objectives) > 1 or not space[0].is_range:
            return None
        return recommend(
            space[0],
            [trial.params[space[0].field] for trial in self.measured],
            [[own[0] for own in trial.seeds.values()] for trial in self.measured],
            objectives[0].sign,
        )

    @property
    def chosen(self) -> Mapping[str, Any] | None:
        """Return field -> value of the recommended optimum, else of the best trial.

        None with several objectives, or before a trial was measured.
        """
        if self.recommended is not None:
            return {self.recommended.field: self.recommended.value}
        return None if self.best is None else self.best.params

    @property
    def front(self) -> list[TrialResult]:
        """Return the measured trials that no other trial beats in every objective.

        They are sorted by their values. Optuna's Study.best_trials would also count the values that
        `if_failed` gives.
        """
        signs = [objective.sign for objective in self.search.objectives]
        points = [
            (t, [s * v for s, v in zip(signs, t.values or (), strict=True)]) for t in self.measured
        ]
        front = [
            trial
            for trial, own in points
            if not any(
                other != own and all(b >= a for a, b in zip(own, other, strict=True))
                for _, other in points
            )
        ]
        return sorted(front, key=lambda trial: trial.values or ())

    @property
    def history(self) -> list[tuple[int, float]]:
        """Return (trial, best value so far) of each measured trial, reused ones first.

        Only the first objective counts.
        """
        sign, best = self.search.objectives[0].sign, -math.inf
        points = []
        for trial in sorted(self.measured, key=lambda t: (not t.reused, t.number)):
            best = max(best, sign * (trial.values or (math.nan,))[0])
            points.append((trial.number, sign * best))
        return points


def outcome(search: Search, study: Any) -> SearchOutcome:
    """Return the outcome of a search, as the study contains it now."""
    trials = tuple(
        trial_result(search, frozen)
        for frozen in study.get_trials(deepcopy=False)
        if not frozen.user_attrs.get("unborn")
    )
    unconfirmed = SearchOutcome(search, trials, _importance(search, study), {})
    if not search.tune.block.confirm_seeds or unconfirmed.chosen is None:
        return unconfirmed
    return replace(unconfirmed, confirmed=_confirmed(search, unconfirmed.chosen))


def outcomes(searches: Iterable[Search], journal: SearchJournal) -> list[SearchOutcome]:
    """Return the outcomes of those searches that the journal contains, in order."""
    studies = journal.studies()
    return [outcome(search, studies[search.name]) for search in searches if search.name in studies]


def num_trials_left(searches: Sequence[Search], journal: SearchJournal) -> int:
    """Return how many trials of these searches have not ended."""
    wanted = sum(search.tune.block.trials for search in searches)
    if not journal.log.exists():
        return wanted
    ended = [
        trial
        for search in outcomes(searches, journal)
        for trial in search.trials
        if trial.state != "RUNNING" and not trial.reused
    ]
    return max(0, wanted - len(ended))


def confirmation_cells(search: Search, chosen: Mapping[str, Any]) -> list[Cell]:
    """Return the cells of the chosen values, with fresh seeds."""
    return search.cells_at(chosen, search.tune.block.confirm_seeds)


def _confirmed(search: Search, chosen: Mapping[str, Any]) -> dict[int, tuple[float, ...]]:
    folder = search.experiment.folder
    cells = confirmation_cells(search, chosen)
    if any(read_state(folder.cell(cell)).state != "succeeded" for cell in cells):
        return {}
    scores = [score for cell in cells for score in read_scores(folder.cell(cell))]
    _, seeds, why = objective_values(search, collect(cells, folder), scores)
    return {} if why else {int(seed): tuple(values) for seed, values in seeds.items()}


def _importance(search: Search, study: Any) -> dict[str, float]:
    """Return Optuna's importances; none for one field or for a few trials of equal value."""
    complete = [t for t in study.get_trials(deepcopy=False) if t.state.name == "COMPLETE"]
    if len(search.space) < 2 or len({trial.values[0] for trial in complete}) < 4:
        return {}
    from optuna.importance import get_param_importances

    sign = search.objectives[0].sign
    with warnings.catch_warnings():
        # Optuna warns that it minimises the target. The sign makes a lower target the better one.
        warnings.simplefilter("ignore", UserWarning)
        importance: dict[str, float] = get_param_importances(
            study, target=lambda t: -sign * t.values[0]
        )
    return importance


# ------------------------------------------------------------------ how well the best is known


class Bracket(NamedTuple):
    """The tried values between which the optimum of a range lies."""

    field: str
    low: float
    high: float
    is_open: tuple[bool, bool]
    """True if no tried value on that side is known to be worse. Then the end is the end of the
    range."""


def brackets(result: SearchOutcome) -> list[Bracket]:
    """Return, for each range, the nearest tried values on either side that are known to be worse.

    The optimum lies between them, at level 0.95, if the objective has one hill along the range,
    with the other fields unchanged. With one seed there are no brackets.
    """
    best = result.best
    worse = _worse(result, best) if best is not None else None
    if best is None or worse is None:
        return []
    brackets_ = []
    for dimension in result.search.space:
        if dimension.is_range:
            field = dimension.field
            good = [trial.params[field] for trial in result.measured if trial not in worse]
            below = [t.params[field] for t in worse if t.params[field] < min(good)]
            above = [t.params[field] for t in worse if t.params[field] > max(good)]
            low, high = max(below, default=dimension.low), min(above, default=dimension.high)
            brackets_.append(Bracket(field, low, high, (not below, not above)))
    return brackets_


def _worse(result: SearchOutcome, best: TrialResult) -> list[TrialResult] | None:
    """Return the trials whose mean is below the best's by more than chance.

    None without two seeds. The test is Student's t, one-sided, with the spread between seeds
    pooled over all trials. It is corrected for their number (Bonferroni), which also allows for
    the choice of the best.
    """
    sign = result.search.objectives[0].sign
    columns = {t.number: [sign * own[0] for own in t.seeds.values()] for t in result.measured}
    freedom = sum(len(column) - 1 for column in columns.values())
    rest = [trial for trial in result.measured if trial is not best]
    if freedom < 1 or not rest:
        return None
    means = {number: math.fsum(column) / len(column) for number, column in columns.items()}
    squares = math.fsum((v - means[n]) ** 2 for n, column in columns.items() for v in column)
    reach = t_quantile(1 - ALPHA / len(rest), freedom) * math.sqrt(squares / freedom)
    top, count = means[best.number], len(best.seeds)
    return [
        trial
        for trial in rest
        if top - means[trial.number] > reach * math.sqrt(1 / count + 1 / len(trial.seeds))
    ]


@dataclass(frozen=True)
class Contest:
    """The comparison of two searches, each at its best configuration, seed by seed."""

    one: str
    other: str
    difference: Estimate
    p: float
    """Two-sided p-value, corrected for the number of contests (Holm)."""
    fresh: bool
    """True if its seeds were not used to choose the best."""


def contests(results: Sequence[SearchOutcome]) -> list[Contest]:
    """Compare every two searches at their own best, on fresh seeds if both have them."""
    rows: list[tuple[str, str, Estimate, float, bool]] = []
    for one, other in combinations(results, 2):
        if one.best is None or other.best is None:
            continue
        fresh = bool(one.confirmed and other.confirmed)
        a = one.confirmed if fresh else one.best.seeds
        b = other.confirmed if fresh else other.best.seeds
        differences = [a[seed][0] - b[seed][0] for seed in sorted(a.keys() & b.keys())]
        if differences:
            difference = estimate(differences)
            p = min(1.0, 2 * min(one_sided_p(difference, 0.0)))
            rows.append((one.search.name, other.search.name, difference, p, fresh))
    corrected = holm([row[3] for row in rows])
    return [
        Contest(a, b, difference, p, fresh)
        for (a, b, difference, _, fresh), p in zip(rows, corrected, strict=True)
    ]


# ------------------------------------------------------------------ cells and journals


def cells_of_open_trials(experiment: Experiment, results: Iterable[SearchOutcome]) -> list[Cell]:
    """Return the cells of open trials, without the cells of the spec's own grid."""
    grid = {cell.id for cell in experiment.cells}
    cells = {
        cell.id: cell
        for result in results
        for trial in result.trials
        if trial.state == "RUNNING" and trial.params
        for cell in result.search.cells_at(trial.params, result.search.tune.seeds)
        if cell.id not in grid
    }
    return list(cells.values())


def cells_of_all_trials(experiment: Experiment, results: Iterable[SearchOutcome]) -> list[Cell]:
    """Return the cells of the grid, of every trial and of confirmations, each once.

    A trial's cell has the axes `search` and `trial`.
    """
    cells = {cell.id: cell for cell in experiment.cells}
    for result in results:
        search = result.search
        for trial in result.trials:
            if trial.params:
                for cell in search.cells_at(trial.params, search.tune.seeds):
                    axes = {**cell.axes, "search": search.name, "trial": str(trial.number)}
                    cells.setdefault(cell.id, cell.model_copy(update={"axes": axes}))
        if result.chosen is not None:
            for cell in confirmation_cells(search, result.chosen):
                cells.setdefault(cell.id, cell)
    return list(cells.values())


class JournalOutcomes(NamedTuple):
    """The searches of one journal."""

    name: str
    outcomes: tuple[SearchOutcome, ...]
    mlflow_runs: Mapping[str, str]
    """Cell id -> id of its MLflow run."""


def read_journals(experiment: Experiment) -> tuple[list[JournalOutcomes], list[str]]:
    """Return every search of an experiment by journal, and the reasons why some cannot be shown.

    Every search is read back, from the spec's block or from flags alone: the journal's folder has
    the block with which it was last driven. Nothing is written.
    """
    read: list[JournalOutcomes] = []
    faults: list[str] = []
    for log in sorted((experiment.folder.path / "tune").glob("*/journal.log")):
        journal = SearchJournal(experiment.folder, log.parent.name)
        try:
            own = tuple(_read_journal(experiment, journal, faults))
        except OrchError as error:
            faults.append(str(error))
            continue
        if own:
            read.append(JournalOutcomes(log.parent.name, own, journal.mlflow_runs()))
    return read, faults


def _read_journal(
    experiment: Experiment, journal: SearchJournal, faults: list[str]
) -> Iterator[SearchOutcome]:
    for name, study in journal.studies().items():
        block = journal.block(name)
        if block is None:
            faults.append(
                f"{journal.path}: the block of search {name} is missing, so the search cannot be "
                "shown; run `orch tune` once more as it was begun, or remove the folder"
            )
            continue
        try:
            search = read_back(experiment, name, block)
        except OrchError as error:
            faults.append(f"{journal.path}: search {name} does not fit the spec any more: {error}")
            continue
        if journal.is_of(search):
            yield outcome(search, study)
        else:
            faults.append(
                f"{journal.path}: the spec has changed since search {name} began, so the search is "
                "not shown; `orch tune` with another --name begins a new one"
            )
