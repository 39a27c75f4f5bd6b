"""Learning curves over seeds, cut to the progress all seeds have in common."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.compare.estimates import estimate

MAX_POINTS = 120
"""More steps than this are thinned evenly; the first and the last are kept."""
Series = Mapping[int, float]
"""Train step -> value."""


@dataclass(frozen=True)
class Curve:
    """One metric of one configuration. `mean`, `low` and `high` are over all of `seeds`."""

    steps: tuple[int, ...]
    seeds: Mapping[int, tuple[float, ...]]
    """Seed -> value at each step; NaN where the trainer reported none that is a number."""
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    """95 % interval over seeds; empty with one seed."""


def curve(
    series: Mapping[int, Series], bounds: tuple[float, float] = (-math.inf, math.inf)
) -> Curve | None:
    """Seeds at the train steps that every one of them reached; None if there is no such step.

    Bands are cut to `bounds`, between which the metric lies.
    """
    reached = [set(points) for points in series.values() if points]
    if not reached or len(reached) < len(series):
        return None
    steps = _thinned(sorted(set.intersection(*reached)))
    if not steps:
        return None
    columns = [[points[step] for points in series.values()] for step in steps]
    seeds = {seed: tuple(points[step] for step in steps) for seed, points in series.items()}
    found = [
        estimate(column).within(*bounds) if all(map(math.isfinite, column)) else None
        for column in columns
    ]
    mean = tuple(math.nan if at is None else at.mean for at in found)
    if len(series) == 1:
        return Curve(tuple(steps), seeds, mean, (), ())
    low = tuple(math.nan if at is None or at.low is None else at.low for at in found)
    high = tuple(math.nan if at is None or at.high is None else at.high for at in found)
    return Curve(tuple(steps), seeds, mean, low, high)


def _thinned(steps: Sequence[int]) -> list[int]:
    if len(steps) <= MAX_POINTS:
        return list(steps)
    last = len(steps) - 1
    return [steps[round(i * last / (MAX_POINTS - 1))] for i in range(MAX_POINTS)]
