"""Intervals and tests: two-sided, at level 0.95, over seeds unless a name has another population.

The distributions are SciPy's: Student's t, chi-square, the binomial, and the beta function for
Clopper-Pearson. They come from `scipy.special`, which loads five times faster than `scipy.stats`.
This module adds what SciPy does not have: Holm's correction, the interval over seeds and items,
and the tests of claims.

A claim's effect is a weighted sum of the means of configurations. Its test uses the variance of
each of them, and what the grid's other configurations say of variances.
`python benchmarks/claims.py` measures its false claims, its power and the coverage of its interval.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

LEVEL = 0.95
ALPHA = 1 - LEVEL
SMALLEST_SD = 1e-12
"""A smaller standard deviation between seeds is only rounding."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over `n` seeds with its interval. `low` and `high` are None with one seed."""

    mean: float
    n: int
    sd: float = math.nan
    """Standard deviation between seeds; NaN with one."""
    low: float | None = None
    high: float | None = None

    def within(self, low: float, high: float) -> "Estimate":
        """Return the estimate with its interval cut to [low, high], the range of the mean."""
        if self.low is None or self.high is None:
            return self
        return replace(self, low=max(low, self.low), high=min(high, self.high))

    @property
    def half_width(self) -> float | None:
        """Return the length of the interval's longer side, or None without an interval."""
        if self.low is None or self.high is None:
            return None
        return max(self.high - self.mean, self.mean - self.low)

    @property
    def excludes_zero(self) -> bool:
        """Return True if there is an interval and 0 lies outside it."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


@dataclass(frozen=True, slots=True)
class Rate:
    """`count` of `n` runs, with the exact (Clopper-Pearson) interval of the share."""

    count: int
    n: int
    low: float
    high: float

    @property
    def share(self) -> float:
        """Return `count / n`, or NaN without a run."""
        return self.count / self.n if self.n else math.nan


# ---------------------------------------------------------------- over seeds


def estimate(values: Iterable[float]) -> Estimate:
    """Return the mean of one value per seed, with Student's t interval.

    Raise ValueError if there is no value.
    """
    x = sorted(values)
    n = len(x)
    if n == 0:
        raise ValueError("a mean needs at least one value")
    mean = math.fsum(x) / n
    if n == 1:
        return Estimate(mean, 1)
    sd = math.sqrt(math.fsum((v - mean) ** 2 for v in x) / (n - 1))
    half = t_quantile(1 - ALPHA / 2, n - 1) * sd / math.sqrt(n)
    return Estimate(mean, n, sd, mean - half, mean + half)


def rate(count: int, n: int) -> Rate:
    """Return the share `count / n` with its Clopper-Pearson interval: [0, 1] without a run."""
    from scipy.special import betaincinv

    low = float(betaincinv(count, n - count + 1, ALPHA / 2)) if count else 0.0
    high = float(betaincinv(count + 1, n - count, 1 - ALPHA / 2)) if count < n else 1.0
    return Rate(count, n, low, high)


@lru_cache(maxsize=256)
def t_quantile(probability: float, degrees: float) -> float:
    """Return a quantile of Student's t with `degrees` degrees of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability))


# ---------------------------------------------------------------- tests


def one_sided_p(effect: Estimate, bound: float) -> tuple[float, float]:
    """Return p of "the mean is not above `bound`" and p of "the mean is not below it".

    The test is Student's t, for one look. Both are 0.5 with one seed, if the mean equals the bound,
    and if all seeds have the same value: then no spread is measured.
    """
    from scipy.special import stdtr

    equal = math.isclose(effect.mean, bound, abs_tol=1e-12)
    if effect.n < 2 or equal or effect.sd < SMALLEST_SD:
        return 0.5, 0.5
    t = (effect.mean - bound) / (effect.sd / math.sqrt(effect.n))
    return float(stdtr(effect.n - 1, -t)), float(stdtr(effect.n - 1, t))


def two_sided_p(effect: Estimate | None) -> float:
    """Return p of "the mean is 0" by Student's t, or 1 without an effect or with one seed."""
    return 1.0 if effect is None else min(1.0, 2 * min(one_sided_p(effect, 0.0)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values with Holm's correction (1979), in the same order.

    Holm bounds the probability of any false claim. SciPy only has corrections of the false
    discovery rate.
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        # Never below the corrected p of a smaller one: the order of the p-values stays.
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


# ---------------------------------------------------------------- over seeds and items


def estimate_over_items(tables: Sequence[Any]) -> Estimate:
    """Return the mean over tasks of each table's mean, with its interval over seeds and items.

    Each table is [seeds, items], all with the same seeds in the same order. With one seed the
    result has no interval.

    An interval over seeds alone is about these items. An interval over seeds and items is about the
    tasks that the items were drawn from, and is wider. The two samples are crossed: every seed
    answers every item.

    The half width is the mean of two, from the components of variance: with Satterthwaite's degrees
    of freedom (too short for few seeds), and the root of the squares of Student's t over seeds and
    over items (too long). Coverage of the 95 % interval, measured with 600 repetitions for each of
    eight mixtures of spreads: 93.2 to 97.8 % with 3 or more seeds, and 92.3 to 98.3 % with 2 seeds.
    tests/analysis/test_crossed.py measures four of the mixtures.
    """
    import numpy as np

    arrays = [np.asarray(table, dtype=float) for table in tables]
    by_seed = np.mean([a.mean(axis=1) for a in arrays], axis=0)
    mean, n = float(by_seed.mean()), len(by_seed)
    if n == 1:
        return Estimate(mean, 1)
    half = _half_width(float(by_seed.var(ddof=1)) / n, n, arrays)
    return Estimate(mean, n, float(by_seed.std(ddof=1)), mean - half, mean + half)


def _half_width(seeds: float, num_seeds: int, tables: Sequence[Any]) -> float:
    """Return the half width. `seeds`: variance from seeds, and from seeds and items together."""
    items = sum(map(_item_variance, tables)) / len(tables) ** 2
    total, num_items = seeds + items, min(table.shape[1] for table in tables)
    if total == 0:
        return 0.0
    rest = max(num_items - 1, 1)
    degrees = total**2 / (seeds**2 / (num_seeds - 1) + items**2 / rest)
    short = t_quantile(1 - ALPHA / 2, degrees) * math.sqrt(total)
    of_seeds = t_quantile(1 - ALPHA / 2, num_seeds - 1) * math.sqrt(seeds)
    return (short + math.hypot(of_seeds, t_quantile(1 - ALPHA / 2, rest) * math.sqrt(items))) / 2


def _item_variance(table: Any) -> float:
    """Return the moment estimate of the variance of a table's mean that comes from items alone.

    A negative one counts as 0.
    """
    seeds, items = table.shape
    if items == 1:
        return 0.0
    of_items, of_seeds, mean = table.mean(axis=0), table.mean(axis=1, keepdims=True), table.mean()
    between = seeds * float(((of_items - mean) ** 2).sum()) / (items - 1)
    # What is left after the effects of seeds and of items, as in a two-way analysis of variance.
    rest = float(((table - of_seeds - of_items + mean) ** 2).sum()) / ((seeds - 1) * (items - 1))
    return float(max(between - rest, 0.0) / table.size)


# ---------------------------------------------------------------- relative improvement


def mean_relative_improvement(
    pairs: Sequence[tuple[Mapping[int, float], Mapping[int, float]]],
) -> Estimate | None:
    """Return the paper's "average relative improvement" (§4.1): the mean of left / right - 1.

    Each pair is of one task, and maps a seed to a value; only common seeds count. The interval is
    Student's t over each seed's first-order contribution to the ratios (the delta method). Return
    None without a common seed, if the mean of a right side is not above 0, or if it is less than a
    thousandth of the mean of its left: such runs have collapsed, and a share of almost nothing
    tells nothing.
    """
    import numpy as np

    seeds = sorted(set.intersection(*(left.keys() & right.keys() for left, right in pairs)))
    if not seeds:
        return None
    left, right = (
        np.array([[side[seed] for seed in seeds] for side in sides])
        for sides in zip(*pairs, strict=True)
    )
    top, bottom = (side.mean(axis=1, keepdims=True) for side in (left, right))
    if (bottom <= 0).any() or (bottom < top / 1000).any():
        return None
    value = float((top / bottom - 1).mean())
    # Of the contributions of all seeds, whose mean is 0.
    around = estimate(((left - top / bottom * right) / bottom).mean(axis=0).tolist())
    if around.low is None or around.high is None:
        return Estimate(value, around.n)
    return Estimate(value, around.n, around.sd, value + around.low, value + around.high)


# ---------------------------------------------------------------- claims: means of configurations


PLANNED = 0.7
"""Share of the error that the planned seeds get; seeds that are added later share the rest."""
SURE = 0.9
"""Confidence with which the prior of variances has at least the degrees that are used."""
DEGREES = 0.5, 100.0
"""Fewest and most degrees of freedom of the prior."""
MAX_SEEDS = 1000
"""Maximum of every search for a number of seeds. More seeds count as impossible."""
POWER = 0.8
"""The probability with which the number of seeds that is named decides a claim."""
CAUTION = 0.8
"""Probability that the spread which a number of seeds is computed with is not too small."""
_POINTS = 4000
"""Points of the integral of a characteristic function."""


def level_of_look(seeds: Sequence[int]) -> float:
    """Return the error that may be spent at the last of several looks.

    `seeds`: the number of seeds at each look, ascending, the planned look first. The planned look
    has PLANNED of ALPHA. Seeds that are added later share the rest: from m seeds to n, the share
    planned / m - planned / n of it (Lan and DeMets 1983), so all looks together spend at most
    ALPHA.
    """
    if len(seeds) < 2:
        return PLANNED * ALPHA
    first, before, now = seeds[0], seeds[-2], seeds[-1]
    return (1 - PLANNED) * ALPHA * (first / before - first / now)


@dataclass(frozen=True, slots=True)
class WeightedMean:
    """The mean of one configuration in an effect."""

    weight: float
    mean: float
    n: int
    variance: float = math.nan
    """Variance between its `n` runs; NaN with one."""
    pooled: bool = True
    """True if the grid's prior of variances applies to it."""


@dataclass(frozen=True, slots=True)
class VariancePrior:
    """What the configurations of a grid say of the variance of another: a scaled inverse
    chi-square distribution."""

    degrees: float
    variance: float


def variance_prior(variances: Iterable[tuple[float, int]]) -> VariancePrior | None:
    """Return the prior of variances of a grid, or None without a variance above 0.

    `variances`: variance between runs and number of runs of each configuration. The moments of log
    variances give the prior (Smyth 2004, equation 10). Its degrees are the lower end of their SURE
    interval: the number of configurations is small, and too many degrees claim falsely.
    """
    import numpy as np
    from scipy.special import chdtri, digamma, polygamma

    known = [(v, n - 1) for v, n in variances if n > 1 and v > SMALLEST_SD**2]
    if not known:
        return None
    s2, df = (np.array(column, dtype=float) for column in zip(*known, strict=True))
    logs = np.log(s2) - digamma(df / 2) + np.log(df / 2)
    degrees = DEGREES[0]
    if len(known) > 1:
        largest = logs.var(ddof=1) * (len(known) - 1) / chdtri(len(known) - 1, SURE)
        excess = float(largest - polygamma(1, df / 2).mean())
        degrees = _root(lambda d: excess - float(polygamma(1, d / 2)), *DEGREES)
    scale = float(np.exp(logs.mean() + digamma(degrees / 2) - math.log(degrees / 2)))
    return VariancePrior(degrees, scale)


class PooledEffect:
    """The distribution of an effect, given its configurations: a weighted sum of Student's t.

    The mean of a configuration lies around its true mean as Student's t, with the degrees of its
    seeds and of the prior. The sum has no closed form (the problem of Behrens and Fisher). Its
    probabilities are integrals of its characteristic function (Gil-Pelaez 1951).
    """

    def __init__(self, means: Sequence[WeightedMean], prior: VariancePrior | None):
        """Raise ValueError if a mean has one run only, or if nothing varies."""
        self.mean = math.fsum(each.weight * each.mean for each in means)
        parts: list[tuple[float, float, int]] = []
        for each in means:
            if each.n < 2:
                raise ValueError("a mean of one run has no spread")
            # Equal values, as of few items, say nothing of the spread: the prior alone has one.
            degrees = each.n - 1.0 if each.variance > SMALLEST_SD**2 else 0.0
            squares = degrees * each.variance
            if prior is not None and each.pooled:
                degrees, squares = (
                    degrees + prior.degrees,
                    squares + prior.degrees * prior.variance,
                )
            if degrees:
                error = abs(each.weight) * math.sqrt(squares / degrees / each.n)
                parts.append((error, degrees, each.n))
        self.spread_of(parts)

    def spread_of(self, means: Sequence[tuple[float, float, int]]) -> None:
        """Keep the distribution of means, each with standard error, degrees and number of runs."""
        import numpy as np

        self.means = [each for each in means if each[0] > SMALLEST_SD]
        parts = [(se, degrees) for se, degrees, _ in self.means]
        if not parts:
            raise ValueError("all runs of a side have the same value: no spread is measured")
        self.error = math.sqrt(math.fsum(se * se for se, _ in parts))
        # The characteristic function falls as exp(-sum of se √degrees t), with many degrees as a
        # normal one: beyond this it is below rounding.
        end = 40.0 / math.fsum(se * math.sqrt(degrees) for se, degrees in parts) + 9 / self.error
        self._at = (np.arange(_POINTS) + 0.5) * end / _POINTS
        self._step = end / _POINTS
        self._values = np.exp(
            sum(_log_characteristic(se * self._at, degrees) for se, degrees in parts)
        )

    def tails(self, bound: float) -> tuple[float, float]:
        """Return p of "the effect is not above `bound`" and p of "it is not below it"."""
        import numpy as np

        if not self.mean - bound:
            return 0.5, 0.5
        waves = np.sin(self._at * abs(self.mean - bound)) / self._at * self._values
        p = min(0.5, max(1e-7, 0.5 - float(waves.sum()) * self._step / math.pi))
        return (p, 1 - p) if self.mean > bound else (1 - p, p)

    def interval(self, alpha: float) -> tuple[float, float]:
        """Return the interval of the effect at level 1 - alpha: the bounds that it does not
        reject."""
        half = _root(lambda h: alpha - 2 * min(self.tails(self.mean - h)), 0.0, self.error * 1e3)
        return self.mean - half, self.mean + half

    def with_more(self, added: int) -> "PooledEffect":
        """Return the distribution that this many more seeds would have, of the same spread."""
        grown = copy(self)
        grown.spread_of(
            [
                (se * math.sqrt(n / (n + added)), degrees + added, n + added)
                for se, degrees, n in self.means
            ]
        )
        return grown

    def seeds_to_decide(
        self, distance: float, seeds: int, level: Callable[[int], float], power: float = POWER
    ) -> int | None:
        """Return the number of seeds, above `seeds`, that decides at a distance from the bound.

        `level`: of a number of seeds. Distance and spread count as exact. Return None if no number
        up to MAX_SEEDS does.
        """

        def enough(n: int) -> bool:
            grown = self.with_more(n - seeds)
            left = distance - t_quantile(power, DEGREES[1]) * grown.error
            return left > 0 and 2 * min(grown.tails(grown.mean - left)) < level(n)

        fewest = seeds + 1 + bisect_left(range(seeds + 1, MAX_SEEDS + 1), True, key=enough)
        return fewest if fewest <= MAX_SEEDS else None

    @property
    def caution(self) -> float:
        """Return by how much the spread may exceed what few seeds show (one-sided 80 %)."""
        from scipy.special import chdtri

        degrees = self.error**4 / math.fsum(se**4 / df for se, df, _ in self.means)
        return float(math.sqrt(degrees / chdtri(degrees, CAUTION)))


def _log_characteristic(t: Any, degrees: float) -> Any:
    """Return the log of the characteristic function of Student's t at `t`, above 0."""
    import numpy as np
    from scipy.special import gammaln, kve

    half, z = degrees / 2, math.sqrt(degrees) * t
    with np.errstate(over="ignore", invalid="ignore"):
        logs = np.log(kve(half, z)) - z + half * np.log(z) - gammaln(half)
        logs -= (half - 1) * math.log(2)
    # kve overflows near 0 if the degrees are many; there the second moment is enough.
    return np.where(np.isfinite(logs), np.minimum(logs, 0.0), -z * z / (4 * max(half - 1, 1)))


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    # 50 halvings bring the interval below every digit that is printed.
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) >= 0 else (middle, high)
    return high


# ---------------------------------------------------------------- claims: shares of runs


def p_between_shares(
    left: Sequence[int], right: Sequence[int], whole: int = 0
) -> tuple[float, float]:
    """Return p of "left is not above right" and of "it is not below".

    Each number is the total of one seed over the settings of a side, so runs that share a seed
    count once. `whole`: the largest possible total. The randomisation test counts the ways to deal
    the seeds of both sides to two sides. Of few seeds its own p is one of few values. So where each
    seed has all of it or nothing, p is the largest probability of such a p that any share has
    (Boschloo 1970). Each errs with at most its level among the seeds that lead to it.
    """
    if whole and all(total in (0, whole) for total in (*left, *right)):
        one, other = (sum(map(bool, side)) for side in (left, right))
        above, below = _boschloo(len(left), len(right)), _boschloo(len(right), len(left))
        return float(above[one, other]), float(below[other, one])
    return _dealt(left, right)


def _dealt(left: Sequence[int], right: Sequence[int]) -> tuple[float, float]:
    """Return the p of the randomisation test, in both directions."""
    import numpy as np

    every, chosen = [*left, *right], len(left)
    # ways[k, s]: ways to choose k seeds with the total s.
    ways = np.zeros((chosen + 1, sum(every) + 1))
    ways[0, 0] = 1.0
    for total in every:
        for k in range(chosen, 0, -1):
            ways[k, total:] += ways[k - 1, : ways.shape[1] - total]
    dealt = ways[chosen] / ways[chosen].sum()
    return float(dealt[sum(left) :].sum()), float(dealt[: sum(left) + 1].sum())


@lru_cache(maxsize=64)
def _boschloo(m: int, n: int) -> Any:
    """Return p of "left is not above right" of all counts of m seeds and of n, [m + 1, n + 1].

    It is the largest probability, over all common shares, of a p of dealing as small. Dealing's own
    p is larger: 1/20 for 3 of 3 against none, where this is 1/64.
    """
    import numpy as np
    from scipy.special import binom

    left, right = np.arange(m + 1), np.arange(n + 1)
    ways = np.outer(binom(m, left), binom(n, right))
    both = left[:, None] + right
    p = np.empty(both.shape)
    for margin in range(m + n + 1):
        dealt = both == margin
        p[dealt] = ways[dealt][::-1].cumsum()[::-1] / ways[dealt].sum()
    p = p.round(12)
    shares = np.linspace(0, 1, 401)[1:-1, None]
    chances = ways.ravel() * shares ** both.ravel() * (1 - shares) ** (m + n - both.ravel())
    order = p.ravel().argsort(kind="stable")
    largest = chances[:, order].cumsum(axis=1).max(axis=0).clip(max=1.0)
    return largest[np.searchsorted(p.ravel()[order], p, side="right") - 1]


def p_of_share(totals: Sequence[int], settings: int, bound: float) -> tuple[float, float]:
    """Return p of "the share is not above `bound`" and of "it is not below": the binomial.

    `totals`: of each seed, over so many settings. Settings share seeds, so a seed counts once: for
    a share above the bound if all its runs are counted, for one below if any is.
    """
    from scipy.special import bdtr, bdtrc

    n = len(totals)
    whole = sum(t == settings for t in totals)
    some = sum(t > 0 for t in totals)
    if not 0 <= bound <= 1:
        return (0.0, 1.0) if bound < 0 else (1.0, 0.0)
    return float(bdtrc(whole - 1, n, bound)) if whole else 1.0, float(bdtr(some, n, bound))
