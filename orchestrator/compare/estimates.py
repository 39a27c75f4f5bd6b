"""Intervals and tests. Two-sided, at level 0.95, over seeds unless a name says otherwise."""

import math
from collections.abc import Callable, Iterable, Sequence
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
