"""Relative improvement, as the paper reports it: how much higher left is than right, in shares of
right (§4.1: 19.06 %, 6.21 %, 15.94 %, 3.65 %)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.compare.estimates import ALPHA, quantile


@dataclass(frozen=True, slots=True)
class Improvement:
    """`left / right - 1` over `n` seeds they share. No interval with one seed, or where right is
    not told from 0."""

    value: float
    n: int
    low: float | None = None
    high: float | None = None


def improvement(left: Mapping[int, float], right: Mapping[int, float]) -> Improvement | None:
    """Of means over the common seeds (seed -> value), with Fieller's interval for a ratio of
    paired means. None without a common seed, or where the mean of right is not above 0."""
    seeds = sorted(left.keys() & right.keys())
    if not seeds:
        return None
    x, y = [left[s] for s in seeds], [right[s] for s in seeds]
    n = len(seeds)
    top, bottom = math.fsum(x) / n, math.fsum(y) / n
    if bottom <= 0:
        return None
    value = top / bottom - 1
    bounds = _fieller(x, y, top, bottom) if n > 1 else None
    return Improvement(value, n) if bounds is None else Improvement(value, n, *bounds)


def mean_improvement(
    pairs: Sequence[tuple[Mapping[int, float], Mapping[int, float]]],
) -> Improvement | None:
    """The paper's "average relative improvement" over several tasks: the mean of each task's ratio.

    Student's t over seeds, each seed's share of the ratios taken to first order (the delta method:
    Fieller's interval is not defined for a mean of ratios). None where some task has no ratio.
    """
    singles = [improvement(left, right) for left, right in pairs]
    if not singles or any(one is None for one in singles):
        return None
    value = math.fsum(one.value for one in singles if one) / len(singles)
    seeds = sorted(set.intersection(*(left.keys() & right.keys() for left, right in pairs)))
    n = len(seeds)
    if n < 2:
        return Improvement(value, n)
    # value of a seed to first order: d(top/bottom) = (x - ratio * y) / bottom
    shifts = [math.fsum(_shift(left, right, s, seeds) for left, right in pairs) / len(pairs)
              for s in seeds]  # fmt: skip
    sd = math.sqrt(math.fsum(shift**2 for shift in shifts) / (n - 1))
    half = quantile(1 - ALPHA / 2, n - 1) * sd / math.sqrt(n)
    return Improvement(value, n, value - half, value + half)


def _shift(
    left: Mapping[int, float], right: Mapping[int, float], seed: int, seeds: Sequence[int]
) -> float:
    """What this seed adds to the ratio, to first order; over all seeds these sum to 0."""
    top = math.fsum(left[s] for s in seeds) / len(seeds)
    bottom = math.fsum(right[s] for s in seeds) / len(seeds)
    return (left[seed] - top / bottom * right[seed]) / bottom


def _fieller(
    x: Sequence[float], y: Sequence[float], top: float, bottom: float
) -> tuple[float, float] | None:
    """Bounds of top / bottom - 1; None where bottom is not told from 0 (they would be infinite)."""
    n = len(x)
    scale = quantile(1 - ALPHA / 2, n - 1) ** 2 / (n * (n - 1))
    xx = scale * math.fsum((a - top) ** 2 for a in x)
    yy = scale * math.fsum((b - bottom) ** 2 for b in y)
    xy = scale * math.fsum((a - top) * (b - bottom) for a, b in zip(x, y, strict=True))
    a, b, c = bottom**2 - yy, top * bottom - xy, top**2 - xx
    if a <= 0:
        return None
    root = math.sqrt(max(b**2 - a * c, 0.0))
    return (b - root) / a - 1, (b + root) / a - 1
