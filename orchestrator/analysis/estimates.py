"""Intervals and tests. Two-sided, at level 0.95, over seeds unless a name says otherwise."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

LEVEL = 0.95
ALPHA = 1 - LEVEL
POWER = 0.8
SMALLEST_SD = 1e-12
"""Below it, values that should be equal differ by rounding only."""
MAX_SEEDS = 1000
"""A claim that would need more than this is told as one that seeds will not settle."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over `n` seeds. `low` and `high` are None with one seed: it has no interval."""

    mean: float
    n: int
    sd: float = math.nan
    """Standard deviation between seeds; NaN with one."""
    low: float | None = None
    high: float | None = None

    def within(self, low: float, high: float) -> "Estimate":
        """With the interval cut to what the mean can be (an accuracy lies in [0, 1])."""
        if self.low is None or self.high is None:
            return self
        return replace(self, low=max(low, self.low), high=min(high, self.high))

    @property
    def half_width(self) -> float | None:
        """Of the interval, on its longer side; None with one seed."""
        if self.low is None or self.high is None:
            return None
        return max(self.high - self.mean, self.mean - self.low)


@dataclass(frozen=True, slots=True)
class Rate:
    """`count` of `n` runs, with the exact (Clopper-Pearson) interval of the share."""

    count: int
    n: int
    low: float
    high: float

    @property
    def share(self) -> float:
        return self.count / self.n if self.n else math.nan


def estimate(values: Iterable[float]) -> Estimate:
    """Mean of one value a seed, with Student's t interval. Raises ValueError for no value."""
    x = sorted(values)
    n = len(x)
    if n == 0:
        raise ValueError("a mean needs at least one value")
    mean = math.fsum(x) / n
    if n == 1:
        return Estimate(mean, 1)
    sd = math.sqrt(math.fsum((v - mean) ** 2 for v in x) / (n - 1))
    half = quantile(1 - ALPHA / 2, n - 1) * sd / math.sqrt(n)
    return Estimate(mean, n, sd, mean - half, mean + half)


def rate(count: int, n: int) -> Rate:
    """The share `count / n` with its Clopper-Pearson interval; [0, 1] for no run."""
    from scipy.special import betaincinv

    low = float(betaincinv(count, n - count + 1, ALPHA / 2)) if count else 0.0
    high = float(betaincinv(count + 1, n - count, 1 - ALPHA / 2)) if count < n else 1.0
    return Rate(count, n, low, high)


@lru_cache(maxsize=256)
def quantile(probability: float, degrees: float) -> float:
    """Quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability))


def tails(found: Estimate, bound: float) -> tuple[float, float]:
    """One-sided p of "the mean is not above `bound`", and of "it is not below"; (0.5, 0.5) where
    nothing can be said.

    Student's t; the sign test where seeds do not differ at all, as accuracies over few items may
    not: t would have no doubt left after two seeds, and the signs have 1/2^n.
    """
    from scipy.special import stdtr

    if found.n < 2 or math.isclose(found.mean, bound, abs_tol=1e-12):
        return 0.5, 0.5
    if found.sd < SMALLEST_SD:
        p = 0.5**found.n
        return (p, 1 - p) if found.mean > bound else (1 - p, p)
    t = (found.mean - bound) / (found.sd / math.sqrt(found.n))
    return float(stdtr(found.n - 1, -t)), float(stdtr(found.n - 1, t))


def p_fisher(count: int, n: int, other_count: int, other_n: int) -> float:
    """One-sided exact p of "the first share is not above the second" (Fisher)."""
    import numpy as np
    from scipy.special import gammaln

    total, both = count + other_count, n + other_n
    k = np.arange(max(count, total - other_n), min(n, total) + 1)
    logs = -_log_choose(gammaln, both, total)
    logs = logs + _log_choose(gammaln, n, k) + _log_choose(gammaln, other_n, total - k)
    return min(1.0, float(np.exp(logs).sum()))


def _log_choose(gammaln: Callable[[Any], Any], n: int, k: Any) -> Any:
    return gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)


def p_share_above(count: int, n: int, bound: float) -> float:
    """One-sided exact binomial p of "the share is not above `bound`"; 0 for a bound below 0."""
    from scipy.special import bdtrc

    if count == 0 or bound >= 1:
        return 1.0 if bound >= 0 else 0.0
    return float(bdtrc(count - 1, n, max(bound, 0.0)))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for the size of the family (Holm 1979), in the order given."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def seeds_needed(distance: float, sd: float, alpha: float = ALPHA) -> int | None:
    """Seeds with which a mean `distance` from its bound is told from it with power 0.8.

    n >= ((t_{1-alpha/2} + t_{power}) sd / distance)^2, with n - 1 degrees of freedom; None where no
    number up to MAX_SEEDS would do. Without spread, as many as the sign test needs. Assumes that
    distance and sd stay as they were seen.
    """
    import numpy as np
    from scipy.special import stdtrit

    if distance and sd < SMALLEST_SD:
        return math.floor(math.log2(2 / alpha)) + 1
    n = np.arange(2, MAX_SEEDS + 1)
    reach = stdtrit(n - 1, 1 - alpha / 2) + stdtrit(n - 1, POWER)
    enough = np.sqrt(n) * abs(distance) >= reach * sd
    return int(n[enough.argmax()]) if enough.any() and distance else None


# Means over two samples at once: seeds, and the items that every seed answers.
#
# A mean over seeds alone speaks of this benchmark. One over seeds and items speaks of the tasks it
# was drawn from, and has a wider interval. The two samples are crossed (every seed answers every
# item), so both are resampled on their own (Owen 2007, the pigeonhole bootstrap).
#
# The half width is the mean of two: of the hierarchical bootstrap, whose seed level is a Student t
# (a little too long for few seeds), and of the variance components with Satterthwaite's degrees of
# freedom (a little too short). Measured coverage of 95 %, 2,000 repetitions for each of ten
# mixtures of spreads and kinds of items, on draws that nothing was chosen by: 94.2 to 97.3 % from
# 3 seeds on; 92.7 to 98.3 % with 2. tests/analysis/test_crossed.py measures it over four of them.


DRAWS = 2000
_SEED = 20_251_221


@dataclass(frozen=True)
class Parts:
    """A mean and what its variance is made of."""

    mean: float
    seeds: float
    """Variance of the mean through seeds, and through what seeds and items do together."""
    items: float
    """Variance of the mean through items."""
    draws: Any
    """[DRAWS] deviations of the mean when items are drawn again."""


def crossed(tables: Sequence[Any]) -> Estimate:
    """The mean over tasks of the mean of each table [seeds, items], with its interval.

    Every table has the same seeds, in the same order. With one seed there is no interval. Raises
    ValueError for no table, no seed, or a value that is no number.
    """
    import numpy as np

    arrays = [np.asarray(table, dtype=float) for table in tables]
    if not arrays or any(a.ndim != 2 or not a.size or len(a) != len(arrays[0]) for a in arrays):
        raise ValueError("every task needs the same seeds, and at least one item")
    if not all(np.isfinite(a).all() for a in arrays):
        raise ValueError("a score of an item is no number")
    by_seed = np.mean([a.mean(axis=1) for a in arrays], axis=0)
    mean, n = float(by_seed.mean()), len(by_seed)
    if n == 1:
        return Estimate(mean, 1)
    parts = Parts(
        mean,
        float(by_seed.var(ddof=1)) / n,
        sum(_item_variance(a) for a in arrays) / len(arrays) ** 2,
        np.mean([_redrawn(a) for a in arrays], axis=0),
    )
    half_below, half_above = _half_widths(parts, n, min(a.shape[1] for a in arrays))
    return Estimate(mean, n, float(by_seed.std(ddof=1)), mean - half_below, mean + half_above)


def _half_widths(parts: Parts, num_seeds: int, num_items: int) -> tuple[float, float]:
    import numpy as np

    drawn = parts.draws + _student(num_seeds - 1) * math.sqrt(parts.seeds)
    low, high = np.quantile(drawn, [ALPHA / 2, 1 - ALPHA / 2])
    total = parts.seeds + parts.items
    if total == 0:
        return 0.0, 0.0
    rest = parts.items**2 / max(num_items - 1, 1)
    degrees = total**2 / (parts.seeds**2 / (num_seeds - 1) + rest)
    components = quantile(1 - ALPHA / 2, degrees) * math.sqrt(total)
    return (components - float(low)) / 2, (components + float(high)) / 2


def _mean_squares(table: Any) -> tuple[float, float]:
    """Between items, and of what is left when seeds and items are taken out."""
    seeds, items = table.shape
    if items == 1:
        return 0.0, 0.0
    of_items, of_seeds, mean = table.mean(axis=0), table.mean(axis=1, keepdims=True), table.mean()
    between = seeds * float(((of_items - mean) ** 2).sum()) / (items - 1)
    left = float(((table - of_seeds - of_items + mean) ** 2).sum())
    return between, left / ((seeds - 1) * (items - 1))


def _item_variance(table: Any) -> float:
    between, left = _mean_squares(table)
    return max(between - left, 0.0) / int(table.size)


def _redrawn(table: Any) -> Any:
    """[DRAWS] deviations of the table's mean: items drawn again with replacement, without the part
    of their spread that single seeds cause, which is counted with the seeds."""
    import numpy as np

    between, left = _mean_squares(table)
    if between <= left:
        return np.zeros(DRAWS)
    items = table.shape[1]
    own = (between - left) / between * items / max(items - 1, 1)
    return _weights(items) @ (table.mean(axis=0) - table.mean()) * math.sqrt(own)


@lru_cache(maxsize=8)
def _weights(items: int) -> Any:
    """[DRAWS, items]: how often each item is drawn, as a share. The same for every table of a
    size, so differences between configurations are not blurred by the drawing."""
    import numpy as np

    rng = np.random.default_rng([_SEED, items])
    counts = rng.multinomial(items, np.full(items, 1 / items), size=DRAWS)
    return (counts / items).astype(np.float32)


@lru_cache(maxsize=32)
def _student(degrees: int) -> Any:
    """[DRAWS] of Student's t, at evenly spaced quantiles in a fixed shuffled order."""
    import numpy as np
    from scipy.special import stdtrit

    even = stdtrit(degrees, (np.arange(DRAWS) + 0.5) / DRAWS)
    return np.random.default_rng([_SEED, 0, degrees]).permutation(even)


# Relative improvement, as the paper reports it: how much higher left is than right, in shares of
# right (§4.1: 19.06 %, 6.21 %, 15.94 %, 3.65 %).


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
    shifts = [
        math.fsum(_shift(left, right, s, seeds) for left, right in pairs) / len(pairs)
        for s in seeds
    ]
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
