"""Curves of a run, held tightly: a number is 8 bytes, and curves over the same steps share them."""

import math
import re
from array import array
from bisect import bisect_left
from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean
from typing import Any

from orchestrator.analysis.estimates import ALPHA, Estimate, crossed, quantile
from orchestrator.metrics.names import is_divergence
from orchestrator.records import MetricPoint, Record, Score, Selection
from orchestrator.settings import Settings
from orchestrator.spec.claims import COLLAPSE, AxisCondition
from orchestrator.spec.select import matches


class Series(Mapping[int, float]):
    """Train step -> value, in the order of steps."""

    __slots__ = ("numbers", "steps")

    def __init__(self, steps: "array[int]", numbers: "array[float]"):
        """`steps` rise; `numbers` are as many."""
        self.steps, self.numbers = steps, numbers

    @classmethod
    def of(cls, points: Mapping[int, float]) -> "Series":
        """The same points."""
        steps = sorted(points)
        return cls(array("q", steps), array("d", (points[step] for step in steps)))

    def at(self, steps: Sequence[int]) -> "array[float]":
        """The values at some of its steps, given in order."""
        import numpy as np

        if len(steps) == len(self.steps):
            return self.numbers
        places = np.searchsorted(np.frombuffer(self.steps, dtype=np.int64), steps)
        return array("d", np.frombuffer(self.numbers)[places].tobytes())

    def __getitem__(self, step: int) -> float:
        at = bisect_left(self.steps, step)
        if at == len(self.steps) or self.steps[at] != step:
            raise KeyError(step)
        return self.numbers[at]

    def __iter__(self) -> Iterator[int]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def __repr__(self) -> str:
        return f"Series({dict(self.items())})"

    def values(self) -> ValuesView[float]:
        """In the order of steps."""
        return _Values(self)

    def items(self) -> ItemsView[int, float]:
        """In the order of steps."""
        return _Items(self)


class _Values(ValuesView[float]):
    _mapping: Series

    def __iter__(self) -> Iterator[float]:
        return iter(self._mapping.numbers)


class _Items(ItemsView[int, float]):
    _mapping: Series

    def __iter__(self) -> Iterator[tuple[int, float]]:
        return zip(self._mapping.steps, self._mapping.numbers, strict=True)


def series_of(points: Iterable[MetricPoint]) -> dict[str, Series]:
    """Name -> its curve. `points` by rising step, as a record has them, each step once."""
    import numpy as np

    groups: dict[tuple[str, ...], tuple[array[int], array[float]]] = {}
    for point in points:  # those with the same names are one table [points, names]
        names = tuple(point.values)
        if names not in groups:
            groups[names] = array("q"), array("d")
        steps, table = groups[names]
        steps.append(point.step)
        table.extend(point.values.values())
    parts: dict[str, list[tuple[array[int], Any]]] = {}
    for names, (steps, table) in groups.items():
        columns = np.frombuffer(table).reshape(-1, len(names)).T if names else ()
        for name, column in zip(names, columns, strict=True):
            parts.setdefault(name, []).append((steps, column))
    shared: dict[bytes, array[int]] = {}
    return {name: _joined(found, shared) for name, found in parts.items()}


def _joined(parts: Sequence[tuple["array[int]", Any]], shared: dict[bytes, "array[int]"]) -> Series:
    import numpy as np

    if len(parts) == 1:
        steps, column = parts[0]
        return Series(steps, array("d", column.tobytes()))
    every = np.concatenate([np.frombuffer(steps, dtype=np.int64) for steps, _ in parts])
    order = np.argsort(every, kind="stable")
    raw = every[order].tobytes()
    steps = shared.setdefault(raw, array("q", raw))
    return Series(steps, array("d", np.concatenate([c for _, c in parts])[order].tobytes()))


# One run with everything measured on it, under canonical names, and what it is called.


_OF_KL = frozenset({"seed", "kl", "beta", "kl.estimator", "kl.placement", "kl.beta"})
_MEAN_AT_K = re.compile(r"mean@(\d+)")
PREDICTED_ACCURACY = "eval/accuracy_predicted"
"""What a trainer with a closed form reports beside what it measures."""
Protocol = frozenset[tuple[object, ...]]


@dataclass(frozen=True)
class MeasuredRun:
    """A record and its final values. A value that is not there was not measured."""

    record: Record
    finals: Mapping[str, float]
    """Canonical name -> value after the last train step, finite; `collapse` is 0 or 1."""
    series: Mapping[str, Mapping[int, float]]
    """Canonical name -> train step -> value, as far as training came."""
    protocols: Mapping[str, Protocol]
    """Evaluated name -> what was asked how (task, version, sampling, harness)."""
    items: Mapping[str, Any] = field(default_factory=dict)
    """Task -> share of right answers of each item, [items], at the last evaluation; empty where
    single items were not read."""

    @property
    def asked(self) -> Settings:
        """What the spec declared."""
        return self.record.cell.declared or self.record.cell.settings

    @property
    def seed(self) -> int:
        return self.asked.seed

    @cached_property
    def traits(self) -> dict[str, str]:
        """What it is called on every axis but the seed, `kl` told as estimator and placement.

        A cell without a KL term has no placement and no beta.
        """
        kl = self.asked.kl
        own = {"model": self.asked.model.name, "data": self.asked.data.name}
        own |= {name: v for name, v in self.record.cell.axes.items() if name not in _OF_KL}
        own["kl.estimator"] = kl.estimator
        if kl.placement is not None:
            own |= {"kl.placement": kl.placement, "beta": f"{kl.beta:g}"}
        return own

    def holds(self, where: AxisCondition) -> bool:
        """Whether it has one of these values on the axis."""
        return matches(Selection((str(where),)), self.record.cell)

    @property
    def has_kl(self) -> bool:
        return self.asked.kl.placement is not None


ItemScores = Mapping[str, Mapping[str, Any]]
"""Cell id -> task -> share of right answers of each item, [items]."""


def measure(
    records: Iterable[Record], scores: Iterable[Score], items: ItemScores | None = None
) -> list[MeasuredRun]:
    """Every record with the scores of its cell."""
    by_cell: dict[str, list[Score]] = {}
    for score in scores:
        by_cell.setdefault(score.cell_id, []).append(score)
    known = items or {}
    return [
        _run(record, by_cell.get(record.cell.id, []), known.get(record.cell.id, {}))
        for record in records
    ]


def _run(record: Record, scores: Sequence[Score], items: Mapping[str, Any]) -> MeasuredRun:
    series: dict[str, Series] = series_of(record.metrics)
    protocols: dict[str, Protocol] = {}
    added: dict[str, dict[int, float]] = {}
    for step in sorted({score.step for score in scores}):
        for name, (value, protocol) in _evaluated([s for s in scores if s.step == step]).items():
            added.setdefault(name, _points(series.get(name)))[step] = value
            protocols[name] = protocol
    series |= {name: Series.of(points) for name, points in added.items()}
    return MeasuredRun(record, _finals(record, series), series, protocols, items)


def _points(series: Series | None) -> dict[int, float]:
    return {} if series is None else dict(series.items())


def _finals(record: Record, series: Mapping[str, Series]) -> dict[str, float]:
    """Values of a run that ended well; an evaluation before its last step is not a final value.

    A run whose numbers became NaN ends without a policy, and so with an accuracy of 0.
    """
    if record.state != "succeeded":
        return {}
    outcome = record.outcome
    finals: dict[str, float] = {}
    if outcome is not None:
        finals[COLLAPSE] = float(outcome.kind == "collapsed")
    diverged = outcome is not None and outcome.cause == "nan"
    end = max((point.step for point in record.metrics), default=0)
    for name, points in series.items():
        last = points.steps[-1]
        if diverged and is_accuracy(name):
            finals[name] = 0.0
        elif not (name.startswith("eval/") and last < end) and math.isfinite(points[last]):
            finals[name] = points[last]
    return finals


def is_accuracy(name: str) -> bool:
    """Whether a metric is a measured share of right answers."""
    other = is_divergence(name.rpartition("/")[2])
    return name.startswith("eval/") and not other and name != PREDICTED_ACCURACY


def predicted_for(metric: str) -> str | None:
    """The metric that holds the closed form's value of a metric, if there is one."""
    if metric in ("eval/accuracy_in_domain", "eval/in_domain/mean"):
        return PREDICTED_ACCURACY
    return "eval/kl_reverse_predicted" if metric == "eval/kl_reverse" else None


def _evaluated(scores: Sequence[Score]) -> dict[str, tuple[float, Protocol]]:
    """Scores of one checkpoint by canonical name, with the means over the tasks of a domain.

    `eval/in_domain/mean` is of each task's mean@k with the largest k.
    """
    named: dict[str, tuple[float, Protocol]] = {}
    for domain, title in (("in", "in_domain"), ("out", "out_of_domain")):
        tasks: dict[str, dict[str, list[Score]]] = {}
        for score in scores:
            if score.domain == domain and is_divergence(score.metric):
                named[f"eval/{score.task}/{score.metric}"] = _mean([score])
            elif score.domain == domain and score.task != title:
                tasks.setdefault(score.task, {}).setdefault(score.metric, []).append(score)
        for task, metrics in tasks.items():
            named |= {f"eval/{task}/{metric}": _mean(same) for metric, same in metrics.items()}
            means = [metric for metric in metrics if _MEAN_AT_K.fullmatch(metric)]
            if means:
                metrics["mean"] = metrics[max(means, key=lambda m: int(m.partition("@")[2]))]
        for metric in {name for metrics in tasks.values() for name in metrics}:
            if all(metric in metrics for metrics in tasks.values()):
                parts = [_mean(metrics[metric]) for metrics in tasks.values()]
                named[f"eval/{title}/{metric}"] = (
                    math.fsum(value for value, _ in parts) / len(parts),
                    frozenset().union(*(protocol for _, protocol in parts)),
                )
    return named


def _mean(scores: Sequence[Score]) -> tuple[float, Protocol]:
    """Over evaluation seeds."""
    return math.fsum(s.value for s in scores) / len(scores), frozenset(map(_protocol, scores))


def _protocol(score: Score) -> tuple[object, ...]:
    """What must be equal for two scores to be comparable."""
    return (
        score.task,
        score.task_version,
        score.num_items,
        score.repeats,
        score.eval_seed,
        score.sampling,
        score.harness,
    )


# Scores of single items, set side by side: [seeds, items] for each task of a metric.
#
# Every run of a task answers the same items in the same order: task version and number of items are
# part of what makes two scores comparable (runs.Protocol), and are checked before.


_ROUNDING = 1e-5
Column = Mapping[int, MeasuredRun]
"""One configuration: seed -> run."""
ScoreColumns = Sequence[Column]
"""Configurations that are averaged."""


def over_items(column: Column, metric: str) -> Estimate | None:
    """A configuration's mean over seeds and items; None where single items are not known."""
    found = _tables([([column], [])], metric)
    return None if found is None else crossed(found)


def difference_over_items(
    settings: Sequence[tuple[ScoreColumns, ScoreColumns]], metric: str
) -> Estimate | None:
    """Left minus right over common seeds and items, averaged over settings; None where single
    items are not known."""
    found = _tables(settings, metric)
    return None if found is None else crossed(found)


def column(runs: Iterable[MeasuredRun], metric: str) -> Column:
    """The runs of a configuration that have a final value of the metric."""
    return {run.seed: run for run in runs if metric in run.finals}


def _tables(settings: Sequence[tuple[ScoreColumns, ScoreColumns]], metric: str) -> list[Any] | None:
    import numpy as np

    columns = [column for sides in settings for side in sides for column in side]
    seeds = sorted(set.intersection(*(set(column) for column in columns))) if columns else []
    runs = [column[seed] for column in columns for seed in seeds]
    tasks = _tasks(runs, metric)
    if not tasks or not all(_agrees(run, metric) for run in runs):
        return None
    tables = []
    for task in tasks:
        if len({len(run.items.get(task, ())) for run in runs}) != 1:
            return None
        rows = [[_setting(left, right, seed, task) for left, right in settings] for seed in seeds]
        tables.append(np.array([np.mean(row, axis=0) for row in rows]))
    return tables


def _setting(left: ScoreColumns, right: ScoreColumns, seed: int, task: str) -> Any:
    """[items] of one seed: the mean of left minus the mean of right."""
    import numpy as np

    mine = np.mean([column[seed].items[task] for column in left], axis=0)
    return mine - np.mean([column[seed].items[task] for column in right], axis=0) if right else mine


def _tasks(runs: Sequence[MeasuredRun], metric: str) -> list[str]:
    """Tasks whose mean the metric is; none for a metric that is no mean over items."""
    if not metric.startswith("eval/") or not metric.rpartition("/")[2].startswith("mean"):
        return []
    asked = [run.protocols.get(metric, frozenset()) for run in runs]
    return sorted({str(part[0]) for protocol in asked for part in protocol})


def task_metrics(runs: Sequence[MeasuredRun], metric: str) -> list[str]:
    """The mean@k of each task that a domain's mean is over; of anything else, itself."""
    tasks = _tasks(runs, metric)
    if metric.split("/")[1:2] not in (["in_domain"], ["out_of_domain"]) or not tasks:
        return [metric]
    found = []
    for task in tasks:
        names = [m for run in runs for m in run.finals if m.startswith(f"eval/{task}/mean@")]
        if names:
            found.append(max(names, key=lambda name: int(name.rpartition("@")[2])))
    return found or [metric]


def _agrees(run: MeasuredRun, metric: str) -> bool:
    """Whether every task's items are known and average to the final value."""
    tasks = _tasks([run], metric)
    if not all(len(run.items.get(task, ())) for task in tasks):
        return False
    means = [fmean(map(float, run.items[task])) for task in tasks]
    return abs(fmean(means) - run.finals[metric]) < _ROUNDING


# Learning curves over seeds, cut to the progress all seeds have in common.


MAX_POINTS = 120
"""More steps than this are thinned evenly; the first and the last are kept."""


@dataclass(frozen=True)
class LearningCurve:
    """One metric of one configuration. `mean`, `low` and `high` are over all of `seeds`."""

    steps: tuple[int, ...]
    seeds: Mapping[int, Sequence[float]]
    """Seed -> value at each step; NaN where the trainer reported none that is a number."""
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    """95 % interval over seeds; empty with one seed."""


def curve(
    series: Mapping[int, Mapping[int, float]], bounds: tuple[float, float] = (-math.inf, math.inf)
) -> LearningCurve | None:
    """Seeds at the train steps that every one of them reached; None if there is no such step.

    Bands are cut to `bounds`, between which the metric lies.
    """
    import numpy as np

    rows = {s: p if isinstance(p, Series) else Series.of(p) for s, p in series.items()}
    steps = _thinned(_common([points.steps for points in rows.values()]))
    if not steps:
        return None
    seeds = {seed: points.at(steps) for seed, points in rows.items()}
    values = np.array(list(seeds.values()))
    mean, low, high = (array("d", found) for found in _bands(values, bounds))
    return LearningCurve(tuple(steps), seeds, mean, low, high)


def _common(every: Sequence[Sequence[int]]) -> Sequence[int]:
    """The steps that are in all of them, in order."""
    if not every:
        return ()
    first, *others = every
    if all(steps == first for steps in others):
        return first
    return sorted(set(first).intersection(*others))


def _bands(values: Any, bounds: tuple[float, float]) -> tuple[Any, Any, Any]:
    """Mean and Student's interval of [seeds, steps] at each step, as estimate gives them; NaN where
    a seed has no number. No interval with one seed."""
    import numpy as np

    seeds = len(values)
    finite = np.where(np.isfinite(values).all(axis=0), values, np.nan)
    mean = finite.mean(axis=0)
    if seeds == 1:
        return mean, (), ()
    half = quantile(1 - ALPHA / 2, seeds - 1) * finite.std(axis=0, ddof=1) / math.sqrt(seeds)
    return mean, np.maximum(mean - half, bounds[0]), np.minimum(mean + half, bounds[1])


def _thinned(steps: Sequence[int]) -> list[int]:
    if len(steps) <= MAX_POINTS:
        return list(steps)
    last = len(steps) - 1
    return [steps[round(i * last / (MAX_POINTS - 1))] for i in range(MAX_POINTS)]
