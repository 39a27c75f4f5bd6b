"""A run with all its measurements under canonical names, and its curves.

`Series` stores a curve as two arrays. For 1,000 cells of 3,000 steps with 12 metrics this takes
0.4 GiB; dictionaries of the same numbers take 2.7 GiB.
"""

import math
import re
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from operator import attrgetter
from typing import Any

from orchestrator.analysis.stats import ALPHA, t_quantile
from orchestrator.metrics.names import is_divergence
from orchestrator.records import Cell, MetricPoint, Record, Score, Selection
from orchestrator.settings import BackendRef, Settings
from orchestrator.spec.claims import COLLAPSE, AxisCondition
from orchestrator.spec.select import matches

OUT_OVER_IN = "eval/out_over_in/mean"
"""Accuracy out of domain as a share of accuracy in domain: of two terms, the one with the larger
value gains more out of domain than in domain over the other, relative to it."""
PREDICTED_ACCURACY = "eval/accuracy_predicted"
"""The accuracy that a closed form predicts, reported by trainers that have one."""
MAX_POINTS = 120
"""Maximum number of points of a drawn curve. Longer curves are thinned evenly."""
_OF_KL = frozenset({"seed", "kl", "beta", "kl.estimator", "kl.placement", "kl.beta"})
_MEAN_AT_K = re.compile(r"mean@(\d+)")

EvaluationProtocol = frozenset[tuple[object, ...]]
"""The conditions of an evaluation: task, version, items, repeats, seed, sampling and harness."""
ItemScores = Mapping[str, Mapping[str, Any]]
"""Cell id -> task -> share of right answers of each item, [items]."""


class Series(Mapping[int, float]):
    """A curve: train step -> value, in the order of steps."""

    __slots__ = ("numbers", "steps")

    def __init__(self, steps: "array[int]", numbers: "array[float]"):
        """Store the steps, ascending, and one value for each."""
        self.steps, self.numbers = steps, numbers

    @classmethod
    def of(cls, points: Mapping[int, float]) -> "Series":
        """Return the same points as a series."""
        steps = sorted(points)
        return cls(array("q", steps), array("d", (points[step] for step in steps)))

    def at(self, steps: Sequence[int]) -> "array[float]":
        """Return the values at these steps, which must be ascending steps of the series."""
        import numpy as np

        # So many ascending steps of the series are all of its steps.
        if len(steps) == len(self.steps):
            return self.numbers
        indices = np.searchsorted(np.frombuffer(self.steps, dtype=np.int64), steps)
        return array("d", np.frombuffer(self.numbers)[indices].tobytes())

    def __getitem__(self, step: int) -> float:
        index = bisect_left(self.steps, step)
        if index == len(self.steps) or self.steps[index] != step:
            raise KeyError(step)
        return self.numbers[index]

    def __iter__(self) -> Iterator[int]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(frozen=True)
class MeasuredRun:
    """A record with its final values and curves. They have only values that were measured."""

    record: Record
    finals: Mapping[str, float]
    """Canonical name -> value after the last train step, finite; `collapse` is 0 or 1."""
    series: Mapping[str, Series]
    """Canonical name -> train step -> value, as far as training came."""
    protocols: Mapping[str, EvaluationProtocol]
    """Evaluated name -> the conditions of its evaluation."""
    items: Mapping[str, Any] = field(default_factory=dict)
    """Task -> share of right answers of each item, [items], at the last evaluation. Empty if single
    items were not read."""

    @property
    def declared(self) -> Settings:
        """Return the settings in the spec. A rehearsal trains with other settings."""
        return self.record.cell.declared or self.record.cell.settings

    @property
    def seed(self) -> int:
        """Return the seed of the declared settings."""
        return self.declared.seed

    @cached_property
    def traits(self) -> dict[str, str]:
        """Return axis -> value, for every axis but the seed; `kl` as estimator and placement.

        A cell without a KL term has no placement and no beta.
        """
        kl = self.declared.kl
        own = {"model": self.declared.model.name, "data": self.declared.data.name}
        own |= {name: v for name, v in self.record.cell.axes.items() if name not in _OF_KL}
        own["kl.estimator"] = kl.estimator
        if kl.placement is not None:
            own |= {"kl.placement": kl.placement, "beta": f"{kl.beta:g}"}
        return own

    def matches(self, where: AxisCondition) -> bool:
        """Return True if the run has one of these values on the axis."""
        return matches(Selection((str(where),)), self.record.cell)

    @property
    def has_kl(self) -> bool:
        """Return True if the declared settings have a KL term."""
        return self.declared.kl.placement is not None


def per_library(runs: Iterable[MeasuredRun]) -> list[MeasuredRun]:
    """Return one view of each run for each library that it stands for.

    A rehearsal of cells that mean the same in several libraries has all their names on its axis
    `backend`. A view has one of them and the same record id, so the run can be paired within each
    library. Numbers over views must count an id once.
    """
    return [view for run in runs for view in _library_views(run)]


def _library_views(run: MeasuredRun) -> list[MeasuredRun]:
    cell = run.record.cell
    names = cell.axes.get("backend", "").split(" | ")
    versions = cell.axes.get("backend.version", "").split(" | ")
    if len(names) == len(versions) == 1:
        return [run]
    # Without an axis of names, or of releases, all have the one.
    names = names * len(versions) if len(names) == 1 else names
    versions = versions * len(names) if len(versions) == 1 else versions
    return [
        replace(run, record=replace(run.record, cell=_declared_in(cell, *library)))
        for library in zip(names, versions, strict=True)
    ]


def _declared_in(cell: Cell, name: str, version: str) -> Cell:
    """Return the cell as it was declared in one of its libraries."""
    axes = {"backend": name, "backend.version": version}
    settings = cell.declared or cell.settings
    number = None if version in ("", "none") else version
    return cell.but(
        axes=cell.axes | {axis: axes[axis] for axis in axes if axis in cell.axes},
        declared=settings.but(backend=BackendRef(name=name, version=number)),
    )


def looks(runs: Iterable[MeasuredRun]) -> list[int]:
    """Return the number of seeds at each look, ascending: the planned seeds first.

    Seeds that `orch run` had before any run had ended are planned. Seeds that it had after a result
    of the look before was there are another look.
    """
    planned: dict[float, set[int]] = {}
    ended: dict[int, float] = {}
    for run in runs:
        ends = [end.ended for end in run.record.attempts if end is not None]
        planned.setdefault(run.record.planned or 0.0, set()).add(run.seed)
        ended[run.seed] = min([*ends, ended.get(run.seed, math.inf)])
    every: list[set[int]] = []
    for time, seeds in sorted(planned.items()):
        # One seed has no spread, so nothing was decided by it.
        if every and (len(every[0]) < 2 or time <= min(ended[seed] for seed in every[-1])):
            every[-1] |= seeds
        else:
            every.append(seeds)
    return list(accumulate(map(len, every)))


def measure(
    records: Iterable[Record], scores: Iterable[Score], items: ItemScores | None = None
) -> list[MeasuredRun]:
    """Return every record with the scores of its cell."""
    by_cell: dict[str, list[Score]] = {}
    for score in scores:
        by_cell.setdefault(score.cell_id, []).append(score)
    by_items = items or {}
    return [
        _measured_run(record, by_cell.get(record.cell.id, []), by_items.get(record.cell.id, {}))
        for record in records
    ]


def _measured_run(record: Record, scores: Sequence[Score], items: Mapping[str, Any]) -> MeasuredRun:
    series: dict[str, Series] = series_by_metric(record.metrics)
    protocols: dict[str, EvaluationProtocol] = {}
    added: dict[str, dict[int, float]] = {}
    for step in sorted({score.step for score in scores}):
        for name, (value, protocol) in evaluated_metrics(
            [s for s in scores if s.step == step]
        ).items():
            points = dict(series[name].items()) if name in series else {}
            added.setdefault(name, points)[step] = value
            protocols[name] = protocol
    series |= {name: Series.of(points) for name, points in added.items()}
    return MeasuredRun(record, _finals(record, series), series, protocols, items)


def _finals(record: Record, series: Mapping[str, Series]) -> dict[str, float]:
    """Return the values after the last step of a run that ended well, or nothing for other runs.

    An evaluation of an earlier step is not a final value. A run whose numbers became NaN has no
    policy at its end, so its accuracy is 0.
    """
    if record.state != "succeeded":
        return {}
    outcome = record.outcome
    finals: dict[str, float] = {}
    if outcome is not None and outcome.collapsed is not None:
        finals[COLLAPSE] = float(outcome.collapsed)
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
    """Return True for a measured share of right answers.

    A number of different answers, or of answers without a box, is none.
    """
    is_count = name.rpartition("/")[2].startswith(("distinct@", "unboxed@"))
    return is_of_trained(name) and name != OUT_OVER_IN and not is_count


def is_of_trained(name: str) -> bool:
    """Return True for a metric of answers: a run that collapsed has none."""
    measured = name.startswith("eval/") and name != PREDICTED_ACCURACY
    return measured and not is_divergence(name.rpartition("/")[2])


def predicted_metric(metric: str) -> str | None:
    """Return the metric with the closed form's prediction of a metric, or None without one."""
    if metric in ("eval/accuracy_in_domain", "eval/in_domain/mean"):
        return PREDICTED_ACCURACY
    return "eval/kl_reverse_predicted" if metric == "eval/kl_reverse" else None


def evaluated_metrics(scores: Sequence[Score]) -> dict[str, tuple[float, EvaluationProtocol]]:
    """Return the scores of one checkpoint by canonical name, with means over a domain's tasks.

    `eval/in_domain/mean` is the mean of each task's mean@k with the largest k.
    `eval/in_domain/kl_forward` is the mean over the tasks whose divergence was measured.
    """
    named: dict[str, tuple[float, EvaluationProtocol]] = {}
    for domain, title in (("in", "in_domain"), ("out", "out_of_domain")):
        tasks: dict[str, dict[str, list[Score]]] = {}
        for score in scores:
            if score.domain == domain and score.task != title:
                tasks.setdefault(score.task, {}).setdefault(score.metric, []).append(score)
        for task, metrics in tasks.items():
            named |= {
                f"eval/{task}/{metric}": _mean_score(same) for metric, same in metrics.items()
            }
            means = [metric for metric in metrics if _MEAN_AT_K.fullmatch(metric)]
            if means:
                metrics["mean"] = metrics[max(means, key=lambda m: int(m.partition("@")[2]))]
        answered = sum(not all(map(is_divergence, metrics)) for metrics in tasks.values())
        for metric in {name for metrics in tasks.values() for name in metrics}:
            parts = [_mean_score(each[metric]) for each in tasks.values() if metric in each]
            # A mean over fewer tasks would be a mean of other things.
            if is_divergence(metric) or len(parts) == answered:
                named[f"eval/{title}/{metric}"] = (
                    math.fsum(value for value, _ in parts) / len(parts),
                    frozenset().union(*(protocol for _, protocol in parts)),
                )
    inside, outside = named.get("eval/in_domain/mean"), named.get("eval/out_of_domain/mean")
    if inside and outside and inside[0] > 0:
        named[OUT_OVER_IN] = outside[0] / inside[0], inside[1] | outside[1]
    return named


def _mean_score(scores: Sequence[Score]) -> tuple[float, EvaluationProtocol]:
    """Return the mean over evaluation seeds, and the conditions of the evaluations."""
    return math.fsum(s.value for s in scores) / len(scores), frozenset(map(_protocol_of, scores))


_protocol_of = attrgetter(
    "task", "task_version", "num_items", "repeats", "eval_seed", "sampling", "harness"
)
"""The fields that must be equal for two scores to be comparable."""


def series_by_metric(points: Iterable[MetricPoint]) -> dict[str, Series]:
    """Return metric -> curve. `points`: ascending steps, each step once, as in a record."""
    import numpy as np

    groups: dict[tuple[str, ...], tuple[array[int], array[float]]] = {}
    for point in points:  # points with the same names are one table [points, names]
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
    return {name: _merged_parts(columns, shared) for name, columns in parts.items()}


def _merged_parts(
    parts: Sequence[tuple["array[int]", Any]], shared: dict[bytes, "array[int]"]
) -> Series:
    """Return one curve from its parts. Curves with equal steps share one array through `shared`."""
    import numpy as np

    if len(parts) == 1:
        steps, column = parts[0]
        return Series(steps, array("d", column.tobytes()))
    every = np.concatenate([np.frombuffer(steps, dtype=np.int64) for steps, _ in parts])
    order = np.argsort(every, kind="stable")
    raw = every[order].tobytes()
    steps = shared.setdefault(raw, array("q", raw))
    return Series(steps, array("d", np.concatenate([c for _, c in parts])[order].tobytes()))


@dataclass(frozen=True)
class LearningCurve:
    """A metric of a configuration over steps. `mean`, `low` and `high` are over all of `seeds`."""

    steps: tuple[int, ...]
    seeds: Mapping[int, Sequence[float]]
    """Seed -> value at each step; NaN or infinite where the trainer reported such a value."""
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    """95 % interval over seeds; empty with one seed."""


def learning_curve(
    series: Mapping[int, Series], bounds: tuple[float, float] = (-math.inf, math.inf)
) -> LearningCurve | None:
    """Return the seeds' curves at their common train steps, or None without a common step.

    `series`: seed -> curve. `bounds`: the range of the metric, to which bands are cut.
    """
    import numpy as np

    common = _common_steps([points.steps for points in series.values()])
    steps = [common[i] for i in spread_indices(len(common))]
    if not steps:
        return None
    seeds = {seed: points.at(steps) for seed, points in series.items()}
    values = np.array(list(seeds.values()))
    mean, low, high = (array("d", row) for row in _mean_and_band(values, bounds))
    return LearningCurve(tuple(steps), seeds, mean, low, high)


def _common_steps(every: Sequence[Sequence[int]]) -> Sequence[int]:
    """Return the steps that all sequences have, ascending."""
    if not every:
        return ()
    first, *others = every
    if all(steps == first for steps in others):
        return first
    return sorted(set(first).intersection(*others))


def _mean_and_band(values: Any, bounds: tuple[float, float]) -> tuple[Any, Any, Any]:
    """Return mean, low and high of `values` [seeds, steps] at each step, [steps] each.

    They equal those of `estimate`. They are NaN at a step where a seed's value is not finite. With
    one seed, low and high are empty.
    """
    import numpy as np

    seeds = len(values)
    finite = np.where(np.isfinite(values).all(axis=0), values, np.nan)
    mean = finite.mean(axis=0)
    if seeds == 1:
        return mean, (), ()
    half = t_quantile(1 - ALPHA / 2, seeds - 1) * finite.std(axis=0, ddof=1) / math.sqrt(seeds)
    return mean, np.maximum(mean - half, bounds[0]), np.minimum(mean + half, bounds[1])


def spread_indices(count: int, most: int = MAX_POINTS) -> Sequence[int]:
    """Return the indices of at most `most` of `count` points: evenly spread, with both ends."""
    if count <= most:
        return range(count)
    return [round(i * (count - 1) / (most - 1)) for i in range(most)]
