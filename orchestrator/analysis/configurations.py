"""How steadily a configuration trained: outcomes of their own, beside where it ended.

drop            best value of the main curve minus the last one: 0 for a run that ends at its best
spread          standard deviation between seeds of the final value, with its chi-square interval
steps_kept      train steps before a collapse, or all of them: the mean is the area under the
                share of runs that still train (restricted mean survival time)
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.analysis.estimates import ALPHA, Estimate, Rate, estimate, rate
from orchestrator.analysis.runs import (
    PREDICTED_ACCURACY,
    LearningCurve,
    MeasuredRun,
    column,
    curve,
    is_accuracy,
    over_items,
)
from orchestrator.spec.claims import COLLAPSE


@dataclass(frozen=True, slots=True)
class SeedSpread:
    """A standard deviation over `n` seeds. No interval where all values are equal."""

    sd: float
    n: int
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Stability:
    """Of one configuration, over the runs that ended well."""

    metric: str | None
    """The curve that `drop` is of; None where no run has one."""
    drop: Estimate | None
    spread: SeedSpread | None
    """None with fewer than two final values."""
    steps_kept: Estimate | None
    num_train_steps: int
    collapsed_at: tuple[int, ...]
    """Train steps at which runs collapsed, in order; one that never did is not here."""


def stability(runs: Sequence[MeasuredRun], preferred: Sequence[str]) -> Stability:
    """Of the runs of one configuration. `preferred`: curves to judge `drop` by, best first."""
    ended = [run for run in runs if run.record.state == "succeeded"]
    metric = next(
        (m for m in preferred if ended and all(len(run.series.get(m, {})) > 1 for run in ended)),
        None,
    )
    drops = [] if metric is None else [_drop(run.series[metric]) for run in ended]
    finals = [] if metric is None else [r.finals[metric] for r in ended if metric in r.finals]
    steps = max((run.record.cell.settings.num_train_steps for run in runs), default=0)
    collapsed = sorted(step for run in ended if (step := _collapsed_at(run)) is not None)
    kept = [float(steps if (at := _collapsed_at(run)) is None else at) for run in ended]
    return Stability(
        metric,
        estimate(drops).within(0.0, math.inf) if drops else None,
        spread(finals) if len(finals) > 1 else None,
        estimate(kept).within(0.0, float(steps)) if kept else None,
        steps,
        tuple(collapsed),
    )


def spread(values: Sequence[float]) -> SeedSpread:
    """Standard deviation of one value a seed, with its interval under normal seeds."""
    from scipy.special import chdtri

    n = len(values)
    mean = math.fsum(values) / n
    squares = math.fsum((v - mean) ** 2 for v in values)
    sd = math.sqrt(squares / (n - 1))
    if sd == 0:
        return SeedSpread(0.0, n)
    # chdtri(v, p) is the value that chi-square with v degrees of freedom exceeds with probability p
    low, high = (math.sqrt(squares / float(chdtri(n - 1, p))) for p in (ALPHA / 2, 1 - ALPHA / 2))
    return SeedSpread(sd, n, low, high)


def _drop(points: Mapping[int, float]) -> float:
    """From the best value to the last; a curve that ends in NaN has lost all of it."""
    known = [value for value in points.values() if math.isfinite(value)]
    last = points[max(points)]
    return max(known, default=0.0) - (last if math.isfinite(last) else 0.0)


def _collapsed_at(run: MeasuredRun) -> int | None:
    outcome = run.record.outcome
    if outcome is None or outcome.kind != "collapsed":
        return None
    return (
        outcome.step
        if outcome.step is not None
        else max((point.step for point in run.record.metrics), default=0)
    )


# Runs that differ only in their seed, as one configuration with its means and intervals.


IN_DOMAIN = ("eval/in_domain/mean", "eval/accuracy_in_domain", "train/reward_mean")
"""The main result, by preference: the harness's, the trainer's exact one, the training reward."""
OUT_OF_DOMAIN = ("eval/out_of_domain/mean", "eval/accuracy_out_of_domain")
STABILITY = ("eval/accuracy_in_domain", "eval/in_domain/mean", "train/reward_mean")
"""Curves that stability is judged by, by preference."""
STALENESS = ("rollout/staleness_mean", "rollout/staleness_max")


@dataclass(frozen=True)
class Configuration:
    """One study x every axis but the seed."""

    study: str
    traits: Mapping[str, str]
    """Every axis but seed and KL: model, data, backend, async, ..."""
    kl: str
    """`none`, `k1.reward`, ..."""
    beta: float | None
    """None without a KL term."""
    runs: tuple[MeasuredRun, ...]
    """Every seed, by seed, finished or not."""
    finals: Mapping[str, Estimate]
    """Canonical name -> final value over the seeds that have one (`n` says how many)."""
    finals_over_items: Mapping[str, Estimate]
    """The same with an interval over seeds and items, where single items are known."""
    collapse: Rate
    """Over the runs that ended well."""
    stability: Stability
    predicted: float | None
    """Final accuracy by the closed form, where there is one."""
    curves: Mapping[str, LearningCurve]
    staleness: Estimate | None
    """Observed: mean over the train steps of each seed."""
    max_staleness: float | None

    @property
    def name(self) -> str:
        """`k1.reward β=0.1`."""
        return self.kl if self.beta is None else f"{self.kl} β={self.beta:g}"

    @property
    def num_finished(self) -> int:
        return sum(run.record.state == "succeeded" for run in self.runs)

    def by_seed(self, metric: str) -> dict[int, float]:
        """Seed -> final value."""
        return {run.seed: run.finals[metric] for run in self.runs if metric in run.finals}


def configurations(runs: Sequence[MeasuredRun]) -> list[Configuration]:
    """Every configuration, in the order of the runs."""
    groups: dict[tuple[str, tuple[tuple[str, str], ...]], list[MeasuredRun]] = {}
    for run in runs:
        traits = tuple(sorted(run.traits.items()))
        for study in run.record.cell.studies:
            groups.setdefault((study, traits), []).append(run)
    return [
        _configuration(study, sorted(same, key=lambda run: run.seed))
        for (study, _), same in groups.items()
    ]


def _configuration(study: str, runs: Sequence[MeasuredRun]) -> Configuration:
    first = runs[0]
    kl = first.asked.kl
    outcomes = [run.finals[COLLAPSE] for run in runs if COLLAPSE in run.finals]
    stale = [mean for run in runs if (mean := _mean_over_steps(run, STALENESS[0])) is not None]
    largest = [max(run.series[STALENESS[1]].values()) for run in runs if STALENESS[1] in run.series]
    return Configuration(
        study,
        {name: v for name, v in first.traits.items() if name != "beta" and name[:3] != "kl."},
        kl.label,
        kl.beta if first.has_kl else None,
        tuple(runs),
        {metric: _final(runs, metric) for metric in _names(run.finals for run in runs)},
        _over_items(runs),
        rate(int(sum(outcomes)), len(outcomes)),
        stability(runs, STABILITY),
        _predicted(runs),
        _curves(runs),
        estimate(stale) if stale else None,
        max(largest, default=None),
    )


def _final(runs: Iterable[MeasuredRun], metric: str) -> Estimate:
    found = estimate(run.finals[metric] for run in runs if metric in run.finals)
    return found.within(0.0, 1.0) if is_accuracy(metric) else found


def _over_items(runs: Sequence[MeasuredRun]) -> dict[str, Estimate]:
    if not any(run.items for run in runs):
        return {}
    found = {
        metric: over_items(column(runs, metric), metric)
        for metric in _names(run.protocols for run in runs)
        if any(metric in run.finals for run in runs)
    }
    return {metric: one.within(0.0, 1.0) for metric, one in found.items() if one is not None}


def _predicted(runs: Iterable[MeasuredRun]) -> float | None:
    values = [value for run in runs for value in run.series.get(PREDICTED_ACCURACY, {}).values()]
    return values[0] if values else None


def _curves(runs: Sequence[MeasuredRun]) -> dict[str, LearningCurve]:
    """Of every metric, over the seeds that have started to report it."""
    found = {
        metric: curve(
            {run.seed: run.series[metric] for run in runs if metric in run.series},
            bounds=(0.0, 1.0) if is_accuracy(metric) else (-math.inf, math.inf),
        )
        for metric in _names(run.series for run in runs)
    }
    return {metric: one for metric, one in found.items() if one is not None}


def _mean_over_steps(run: MeasuredRun, metric: str) -> float | None:
    values = [v for v in run.series.get(metric, {}).values() if math.isfinite(v)]
    return math.fsum(values) / len(values) if values else None


def _names(mappings: Iterable[Mapping[str, object]]) -> list[str]:
    return sorted({name for mapping in mappings for name in mapping} - {COLLAPSE})


def main_metric(found: Iterable[Configuration], preferred: Sequence[str]) -> str | None:
    """The first preferred metric that any configuration has a final value of."""
    known = {metric for configuration in found for metric in configuration.finals}
    return next((metric for metric in preferred if metric in known), None)
