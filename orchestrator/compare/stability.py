"""How steadily a configuration trained: outcomes of their own, beside where it ended.

drop            best value of the main curve minus the last one: 0 for a run that ends at its best
spread          standard deviation between seeds of the final value, with its chi-square interval
steps_kept      train steps before a collapse, or all of them: the mean is the area under the
                share of runs that still train (restricted mean survival time)
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.compare.estimates import ALPHA, Estimate, estimate
from orchestrator.compare.runs import Run


@dataclass(frozen=True, slots=True)
class Spread:
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
    spread: Spread | None
    """None with fewer than two final values."""
    steps_kept: Estimate | None
    num_train_steps: int
    collapsed_at: tuple[int, ...]
    """Train steps at which runs collapsed, in order; one that never did is not here."""


def stability(runs: Sequence[Run], preferred: Sequence[str]) -> Stability:
    """Of the runs of one configuration. `preferred`: curves to judge `drop` by, best first."""
    ended = [run for run in runs if run.record.state == "succeeded"]
    metric = next((m for m in preferred if ended and all(len(run.series.get(m, {})) > 1
                                                         for run in ended)), None)  # fmt: skip
    drops = [] if metric is None else [_drop(run.series[metric]) for run in ended]
    finals = [] if metric is None else [r.finals[metric] for r in ended if metric in r.finals]
    steps = max((run.record.cell.settings.num_train_steps for run in runs), default=0)
    collapsed = sorted(
        step for run in ended if (step := _collapsed_at(run)) is not None
    )  # fmt: skip
    kept = [float(steps if (at := _collapsed_at(run)) is None else at) for run in ended]
    return Stability(
        metric,
        estimate(drops).within(0.0, math.inf) if drops else None,
        spread(finals) if len(finals) > 1 else None,
        estimate(kept).within(0.0, float(steps)) if kept else None,
        steps,
        tuple(collapsed),
    )


def spread(values: Sequence[float]) -> Spread:
    """Standard deviation of one value a seed, with its interval under normal seeds."""
    from scipy.special import chdtri

    n = len(values)
    mean = math.fsum(values) / n
    squares = math.fsum((v - mean) ** 2 for v in values)
    sd = math.sqrt(squares / (n - 1))
    if sd == 0:
        return Spread(0.0, n)
    # chdtri(v, p) is the value that chi-square with v degrees of freedom exceeds with probability p
    low, high = (math.sqrt(squares / float(chdtri(n - 1, p))) for p in (ALPHA / 2, 1 - ALPHA / 2))
    return Spread(sd, n, low, high)


def _drop(points: Mapping[int, float]) -> float:
    """From the best value to the last; a curve that ends in NaN has lost all of it."""
    known = [value for value in points.values() if math.isfinite(value)]
    last = points[max(points)]
    return max(known, default=0.0) - (last if math.isfinite(last) else 0.0)


def _collapsed_at(run: Run) -> int | None:
    outcome = run.record.outcome
    if outcome is None or outcome.kind != "collapsed":
        return None
    return outcome.step if outcome.step is not None else max(
        (point.step for point in run.record.metrics), default=0
    )  # fmt: skip
