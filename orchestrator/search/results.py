"""What searches have found, read from the journal: the best, how well it is known, the front."""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple

from orchestrator.analysis.stats import ALPHA, Estimate, estimate, holm, one_sided_p, t_quantile
from orchestrator.evaluate import read_scores
from orchestrator.runs.collect import collect
from orchestrator.runs.state import read_state
from orchestrator.search.design import Search, measured_values, spent_on
from orchestrator.search.optimum import Recommended, recommended


@dataclass(frozen=True)
class Tried:
    """One trial, ended or not."""

    number: int
    state: str
    """COMPLETE, PRUNED, FAIL or RUNNING."""
    params: Mapping[str, Any]
    """Field -> what it was set to."""
    values: tuple[float, ...] | None
    """One an objective: means over seeds, or what `if_failed` gives."""
    seeds: Mapping[int, tuple[float, ...]]
    """Seed -> values; empty where nothing was measured."""
    cells: tuple[str, ...]
    reused: bool
    why: str
    gpu_hours: float
    cpu_hours: float


@dataclass(frozen=True)
class SearchOutcome:
    """A search and its trials."""

    search: Search
    trials: tuple[Tried, ...]
    importance: Mapping[str, float]
    """Field -> its share in what sets the best trials apart (PED-ANOVA), for the first objective;
    empty where nothing can be said."""
    confirmed: Mapping[int, tuple[float, ...]]
    """Fresh seed -> values of what is chosen."""

    @property
    def measured(self) -> list[Tried]:
        return [trial for trial in self.trials if trial.state == "COMPLETE" and trial.seeds]

    @property
    def best(self) -> Tried | None:
        """With one objective: the trial with the best mean; the earlier of two."""
        if len(self.search.objectives) > 1:
            return None
        return best(self.search, self.measured)

    @cached_property
    def recommended(self) -> Recommended | None:
        """Where a smooth curve through all trials is best; None where none can be fitted."""
        return recommended(self)

    @property
    def chosen(self) -> Mapping[str, Any] | None:
        """Field -> value, with one objective: what is recommended, or of the best trial where no
        curve can be fitted."""
        if self.recommended is not None:
            return {self.recommended.field: self.recommended.value}
        return None if self.best is None else self.best.params

    @property
    def front(self) -> list[Tried]:
        """Trials that no other beats in every objective, by the first objective."""
        signs = [each.sign for each in self.search.objectives]
        points = [
            (t, [s * v for s, v in zip(signs, t.values or (), strict=True)]) for t in self.measured
        ]
        kept = [
            trial
            for trial, own in points
            if not any(
                other != own and all(b >= a for a, b in zip(own, other, strict=True))
                for _, other in points
            )
        ]
        return sorted(kept, key=lambda trial: trial.values or ())

    @property
    def history(self) -> list[tuple[int, float]]:
        """Trial -> the best value so far, over the measured trials as they were asked."""
        sign, told = self.search.objectives[0].sign, -math.inf
        points = []
        for trial in sorted(self.measured, key=lambda t: (not t.reused, t.number)):
            told = max(told, sign * (trial.values or (math.nan,))[0])
            points.append((trial.number, sign * told))
        return points


class Bracket(NamedTuple):
    """Between which values of a range the optimum lies."""

    field: str
    low: float
    high: float
    is_open: tuple[bool, bool]
    """Whether nothing tried on that side is told to be worse: the end is then the range's own."""


@dataclass(frozen=True)
class Contest:
    """Two searches, each at its own best: the difference seed by seed."""

    one: str
    other: str
    difference: Estimate
    p: float
    """Two-sided, corrected for the number of contests (Holm)."""
    fresh: bool
    """Whether it is of seeds that did not choose the best."""


def found(search: Search, study: Any) -> SearchOutcome:
    """What a study says now."""
    trials = tuple(
        _tried(search, one)
        for one in study.get_trials(deepcopy=False)
        if not one.user_attrs.get("unborn")
    )
    first = SearchOutcome(search, trials, _importance(search, study), {})
    if not search.tune.block.confirm_seeds or first.chosen is None:
        return first
    return replace(first, confirmed=_confirmed(search, first.chosen))


def best(search: Search, trials: Iterable[Tried]) -> Tried | None:
    """The trial with the best mean of the first objective."""
    sign = search.objectives[0].sign
    return max(trials, key=lambda t: (sign * (t.values or (0.0,))[0], -t.number), default=None)


def brackets(one: SearchOutcome) -> list[Bracket]:
    """For each range, the nearest tried values on either side that are told to be worse.

    The optimum lies between them, at level 0.95, if the objective has one hill along the range,
    the other fields being where they are. Nothing is said with one seed.
    """
    winner = one.best
    worse = _worse(one, winner) if winner is not None else None
    if winner is None or worse is None:
        return []
    told = []
    for each in one.search.space:
        if each.is_range:
            level = [t.params[each.field] for t in one.measured if t not in worse]
            below = [t.params[each.field] for t in worse if t.params[each.field] < min(level)]
            above = [t.params[each.field] for t in worse if t.params[each.field] > max(level)]
            low, high = max(below, default=each.low), min(above, default=each.high)
            told.append(Bracket(each.field, low, high, (not below, not above)))
    return told


def _worse(one: SearchOutcome, winner: Tried) -> list[Tried] | None:
    """Trials whose mean is below the best's by more than chance: Student's t, one-sided, with the
    spread between seeds pooled over all trials, corrected for their number (Bonferroni), which
    also allows for the best being chosen. None without two seeds.
    """
    sign = one.search.objectives[0].sign
    columns = {t.number: [sign * v[0] for v in t.seeds.values()] for t in one.measured}
    freedom = sum(len(column) - 1 for column in columns.values())
    rest = [trial for trial in one.measured if trial is not winner]
    if freedom < 1 or not rest:
        return None
    means = {number: math.fsum(column) / len(column) for number, column in columns.items()}
    squares = math.fsum((v - means[n]) ** 2 for n, column in columns.items() for v in column)
    reach = t_quantile(1 - ALPHA / len(rest), freedom) * math.sqrt(squares / freedom)
    top, count = means[winner.number], len(winner.seeds)
    return [
        trial
        for trial in rest
        if top - means[trial.number] > reach * math.sqrt(1 / count + 1 / len(trial.seeds))
    ]


def contests(all_found: Sequence[SearchOutcome]) -> list[Contest]:
    """Every two searches at their own best. Of fresh seeds where both have them."""
    rows: list[tuple[str, str, Estimate, float, bool]] = []
    for one, other in combinations(all_found, 2):
        if one.best is None or other.best is None:
            continue
        fresh = bool(one.confirmed and other.confirmed)
        a = one.confirmed if fresh else one.best.seeds
        b = other.confirmed if fresh else other.best.seeds
        differences = [a[seed][0] - b[seed][0] for seed in sorted(a.keys() & b.keys())]
        if differences:
            told = estimate(differences)
            p = min(1.0, 2 * min(one_sided_p(told, 0.0)))
            rows.append((one.search.name, other.search.name, told, p, fresh))
    corrected = holm([row[3] for row in rows])
    return [
        Contest(a, b, told, p, fresh)
        for (a, b, told, _, fresh), p in zip(rows, corrected, strict=True)
    ]


def _tried(search: Search, one: Any) -> Tried:
    attrs = one.user_attrs
    gpu, cpu = spent_on(search, one)
    return Tried(
        one.number,
        one.state.name,
        {
            each.field: each.value(one.params[each.field])
            for each in search.space
            if each.field in one.params
        },
        tuple(one.values) if one.state.name == "COMPLETE" else None,
        {int(seed): tuple(values) for seed, values in attrs.get("seeds", {}).items()},
        tuple(attrs.get("cells", ())),
        bool(attrs.get("reused")),
        attrs.get("why", ""),
        gpu,
        cpu,
    )


def _importance(search: Search, study: Any) -> dict[str, float]:
    """Needs two fields or more to tell apart, and a few trials that differ in value."""
    ended = [t for t in study.get_trials(deepcopy=False) if t.state.name == "COMPLETE"]
    values = {t.values[0] for t in ended}
    if len(search.space) < 2 or len(values) < 4:
        return {}
    from optuna.importance import get_param_importances

    sign = search.objectives[0].sign
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that less of a target is better: it is here
        told: dict[str, float] = get_param_importances(study, target=lambda t: -sign * t.values[0])
    return told


def confirm_cells(search: Search, chosen: Mapping[str, Any]) -> list[Any]:
    """Cells of what is chosen with fresh seeds."""
    return search.cells_at(chosen, search.tune.block.confirm_seeds)


def _confirmed(search: Search, chosen: Mapping[str, Any]) -> dict[int, tuple[float, ...]]:
    folder = search.experiment.folder
    cells = confirm_cells(search, chosen)
    if any(read_state(folder.cell(cell)).state != "succeeded" for cell in cells):
        return {}
    scores = [score for cell in cells for score in read_scores(folder.cell(cell))]
    _, seeds, why = measured_values(search, collect(cells, folder), scores)
    return {} if why else {int(seed): tuple(values) for seed, values in seeds.items()}
