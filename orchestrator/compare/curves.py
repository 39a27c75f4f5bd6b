"""Learning curves over seeds, cut to the progress all seeds have in common."""

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.compare.estimates import ALPHA, quantile
from orchestrator.compare.series import Series

MAX_POINTS = 120
"""More steps than this are thinned evenly; the first and the last are kept."""


@dataclass(frozen=True)
class Curve:
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
) -> Curve | None:
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
    return Curve(tuple(steps), seeds, mean, low, high)


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
