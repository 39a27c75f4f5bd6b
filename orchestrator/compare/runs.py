"""One run with everything measured on it, under canonical names, and what it is called."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from orchestrator.claims import COLLAPSE, Where
from orchestrator.compare.series import Series, series_of
from orchestrator.names import is_divergence
from orchestrator.select import matches
from orchestrator.settings import Settings
from orchestrator.types import Record, Score, Selection

_OF_KL = frozenset({"seed", "kl", "beta", "kl.estimator", "kl.placement", "kl.beta"})
_MEAN_AT_K = re.compile(r"mean@(\d+)")
PREDICTED_ACCURACY = "eval/accuracy_predicted"
"""What a trainer with a closed form reports beside what it measures."""
Protocol = frozenset[tuple[object, ...]]


@dataclass(frozen=True)
class Run:
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

    def holds(self, where: Where) -> bool:
        """Whether it has one of these values on the axis."""
        return matches(Selection((str(where),)), self.record.cell)

    @property
    def has_kl(self) -> bool:
        return self.asked.kl.placement is not None


Items = Mapping[str, Mapping[str, Any]]
"""Cell id -> task -> share of right answers of each item, [items]."""


def measure(
    records: Iterable[Record], scores: Iterable[Score], items: Items | None = None
) -> list[Run]:
    """Every record with the scores of its cell."""
    by_cell: dict[str, list[Score]] = {}
    for score in scores:
        by_cell.setdefault(score.cell_id, []).append(score)
    known = items or {}
    return [
        _run(record, by_cell.get(record.cell.id, []), known.get(record.cell.id, {}))
        for record in records
    ]


def _run(record: Record, scores: Sequence[Score], items: Mapping[str, Any]) -> Run:
    series: dict[str, Series] = series_of(record.metrics)
    protocols: dict[str, Protocol] = {}
    added: dict[str, dict[int, float]] = {}
    for step in sorted({score.step for score in scores}):
        for name, (value, protocol) in _evaluated([s for s in scores if s.step == step]).items():
            added.setdefault(name, _points(series.get(name)))[step] = value
            protocols[name] = protocol
    series |= {name: Series.of(points) for name, points in added.items()}
    return Run(record, _finals(record, series), series, protocols, items)


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
    return (score.task, score.task_version, score.num_items, score.repeats, score.eval_seed,
            score.sampling, score.harness)  # fmt: skip
