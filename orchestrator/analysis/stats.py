"""Intervals and tests: two-sided, at level 0.95, over seeds unless a name has another population.

The distributions are SciPy's: Student's t, chi-square, the binomial, and the beta function for
Clopper-Pearson. They come from `scipy.special`, which loads five times faster than `scipy.stats`.
This module adds what SciPy does not have: Holm's correction, Fieller's interval, the bootstrap
over seeds and items (docs/decisions/020), and tests that are valid at every look.

Experiments grow because of their results: three seeds, not decided, eight more. A test for a fixed
number of seeds then makes too many false claims. In the last part of this module the evidence
against a hypothesis is a test martingale: its expectation is at most 1 at every number of seeds and
at any stopping time. So the probability that it ever reaches 1/alpha is at most alpha (Ville's
inequality), and p = 1/evidence is a p-value at every look.

means    The t statistic of the differences, under a mixture of normal priors on the standardised
         effect and the right-Haar prior on the spread (Lai 1976; Hendriksen, de Heide and Gruenwald
         2021; Wang and Ramdas 2023). Exact for normal differences.
shares   The Beta(1/2, 1/2) mixture of the binomial over the largest likelihood that the hypothesis
         allows (Robbins 1970; Wasserman, Ramdas and Balakrishnan 2020). Exact.

`python benchmarks/sequential.py` measures their error rates under extensions, and their cost in
seeds.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

LEVEL = 0.95
ALPHA = 1 - LEVEL
SMALLEST_SD = 1e-12
"""A smaller standard deviation between seeds is only rounding."""
DRAWS = 2000
"""Draws of the bootstrap over items."""
_SEED = 20_251_221


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


@dataclass(frozen=True, slots=True)
class SeedSpread:
    """A standard deviation over `n` seeds. It has no interval if all values are equal."""

    sd: float
    n: int
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Improvement:
    """The relative improvement `left / right - 1` over the `n` seeds that both have.

    It has no interval with one seed, or if the mean of right is not distinguishable from 0.
    """

    value: float
    n: int
    low: float | None = None
    high: float | None = None


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


def difference_of_rates(one: Rate, other: Rate) -> tuple[float, float | None, float | None]:
    """Return the difference of two shares and the ends of its 95 % interval.

    The ends are None if a share has no run. The interval combines the exact intervals of the shares
    (Zou and Donner 2008).
    """
    value = one.share - other.share
    if not (one.n and other.n):
        return value, None, None
    below = math.hypot(one.share - one.low, other.high - other.share)
    above = math.hypot(one.high - one.share, other.share - other.low)
    return value, max(-1.0, value - below), min(1.0, value + above)


def seed_spread(values: Sequence[float]) -> SeedSpread:
    """Return the standard deviation of one value per seed, with its chi-square interval.

    The interval assumes normally distributed values.
    """
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


@lru_cache(maxsize=256)
def t_quantile(probability: float, degrees: float) -> float:
    """Return a quantile of Student's t with `degrees` degrees of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability))


# ---------------------------------------------------------------- tests


def one_sided_p(effect: Estimate, bound: float) -> tuple[float, float]:
    """Return p of "the mean is not above `bound`" and p of "the mean is not below it".

    Both are 0.5 with one seed, or if the mean equals the bound. The test is Student's t. If all
    seeds have the same value, as accuracies over few items may, it is the sign test: t would give p
    = 0 after two seeds, and the signs of n seeds give 1/2^n.
    """
    from scipy.special import stdtr

    if effect.n < 2 or math.isclose(effect.mean, bound, abs_tol=1e-12):
        return 0.5, 0.5
    if effect.sd < SMALLEST_SD:
        p = 0.5**effect.n
        return (p, 1 - p) if effect.mean > bound else (1 - p, p)
    t = (effect.mean - bound) / (effect.sd / math.sqrt(effect.n))
    return float(stdtr(effect.n - 1, -t)), float(stdtr(effect.n - 1, t))


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
    result has no interval. Raise ValueError without a table or a seed, and for a value that is not
    finite.

    An interval over seeds alone is about these items. An interval over seeds and items is about the
    tasks that the items were drawn from, and is wider. The two samples are crossed (every seed
    answers every item), so each is resampled separately (Owen 2007, the pigeonhole bootstrap).

    The half width is the mean of two half widths: the hierarchical bootstrap's, with Student's t at
    the level of seeds (slightly too long for few seeds), and the variance components', with
    Satterthwaite's degrees of freedom (slightly too short). Coverage of the 95 % interval, measured
    with 2,000 repetitions for each of ten mixtures of spreads and kinds of items, on draws that no
    choice was made on: 94.2 to 97.3 % with 3 or more seeds, and 92.7 to 98.3 % with 2 seeds.
    tests/analysis/test_crossed.py measures four of the mixtures.
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
    parts = _VarianceParts(
        mean,
        float(by_seed.var(ddof=1)) / n,
        sum(_item_variance(a) for a in arrays) / len(arrays) ** 2,
        np.mean([_item_deviations(a) for a in arrays], axis=0),
    )
    half_below, half_above = _half_widths(parts, n, min(a.shape[1] for a in arrays))
    return Estimate(mean, n, float(by_seed.std(ddof=1)), mean - half_below, mean + half_above)


@dataclass(frozen=True)
class _VarianceParts:
    """A mean and the parts of its variance."""

    mean: float
    seeds: float
    """Variance of the mean from seeds, and from the interaction of seeds and items."""
    items: float
    """Variance of the mean from items."""
    draws: Any
    """Deviations of the mean when items are drawn again, [DRAWS]."""


def _half_widths(parts: _VarianceParts, num_seeds: int, num_items: int) -> tuple[float, float]:
    import numpy as np

    drawn = parts.draws + _t_draws(num_seeds - 1) * math.sqrt(parts.seeds)
    low, high = np.quantile(drawn, [ALPHA / 2, 1 - ALPHA / 2])
    total = parts.seeds + parts.items
    if total == 0:
        return 0.0, 0.0
    rest = parts.items**2 / max(num_items - 1, 1)
    degrees = total**2 / (parts.seeds**2 / (num_seeds - 1) + rest)
    components = t_quantile(1 - ALPHA / 2, degrees) * math.sqrt(total)
    return (components - float(low)) / 2, (components + float(high)) / 2


def _mean_squares(table: Any) -> tuple[float, float]:
    """Return the mean squares between items, and of the residuals after seeds and items."""
    seeds, items = table.shape
    if items == 1:
        return 0.0, 0.0
    of_items, of_seeds, mean = table.mean(axis=0), table.mean(axis=1, keepdims=True), table.mean()
    between = seeds * float(((of_items - mean) ** 2).sum()) / (items - 1)
    # What is left after the effects of seeds and of items, as in a two-way analysis of variance.
    rest = float(((table - of_seeds - of_items + mean) ** 2).sum())
    return between, rest / ((seeds - 1) * (items - 1))


def _item_variance(table: Any) -> float:
    between, rest = _mean_squares(table)
    # The moment estimate of the variance from items alone. A negative one counts as 0.
    return max(between - rest, 0.0) / int(table.size)


def _item_deviations(table: Any) -> Any:
    """Return deviations of the table's mean when items are drawn with replacement, [DRAWS].

    Scale them down to the variance from items alone. The residual variance is counted with the
    seeds.
    """
    import numpy as np

    between, rest = _mean_squares(table)
    if between <= rest:
        return np.zeros(DRAWS)
    items = table.shape[1]
    # A mean of draws with replacement varies with (n - 1) / n of the variance of a mean of n items.
    own = (between - rest) / between * items / max(items - 1, 1)
    return _item_shares(items) @ (table.mean(axis=0) - table.mean()) * math.sqrt(own)


@lru_cache(maxsize=8)
def _item_shares(items: int) -> Any:
    """Return the share of each item in each draw, [DRAWS, items].

    Tables of equal size share their draws, so drawing adds no noise to differences between
    configurations.
    """
    import numpy as np

    rng = np.random.default_rng([_SEED, items])
    counts = rng.multinomial(items, np.full(items, 1 / items), size=DRAWS)
    return (counts / items).astype(np.float32)


@lru_cache(maxsize=32)
def _t_draws(degrees: int) -> Any:
    """Return evenly spaced quantiles of Student's t in a fixed shuffled order, [DRAWS]."""
    import numpy as np
    from scipy.special import stdtrit

    even = stdtrit(degrees, (np.arange(DRAWS) + 0.5) / DRAWS)
    return np.random.default_rng([_SEED, 0, degrees]).permutation(even)


# ---------------------------------------------------------------- relative improvement


def relative_improvement(
    left: Mapping[int, float], right: Mapping[int, float]
) -> Improvement | None:
    """Return the relative improvement left / right - 1, as in the paper (§4.1).

    Both map a seed to a value; only common seeds count. The interval is Fieller's for a ratio of
    paired means. Return None without a common seed, if the mean of right is not above 0, or if it
    is less than a thousandth of the mean of left: such runs have collapsed, and a share of almost
    nothing tells nothing.
    """
    seeds = sorted(left.keys() & right.keys())
    if not seeds:
        return None
    x, y = [left[s] for s in seeds], [right[s] for s in seeds]
    n = len(seeds)
    top, bottom = math.fsum(x) / n, math.fsum(y) / n
    if bottom <= 0 or bottom < top / 1000:
        return None
    value = top / bottom - 1
    bounds = _fieller(x, y, top, bottom) if n > 1 else None
    return Improvement(value, n) if bounds is None else Improvement(value, n, *bounds)


def mean_relative_improvement(
    pairs: Sequence[tuple[Mapping[int, float], Mapping[int, float]]],
) -> Improvement | None:
    """Return the paper's "average relative improvement": the mean of each task's ratio.

    The interval is Student's t over each seed's first-order contribution to the ratios (the delta
    method), because Fieller's interval is not defined for a mean of ratios. Return None if a task
    has no ratio.
    """
    ratios = [relative_improvement(left, right) for left, right in pairs]
    if not ratios or any(ratio is None for ratio in ratios):
        return None
    value = math.fsum(ratio.value for ratio in ratios if ratio) / len(ratios)
    seeds = sorted(set.intersection(*(left.keys() & right.keys() for left, right in pairs)))
    n = len(seeds)
    if n < 2:
        return Improvement(value, n)
    contributions = [
        math.fsum(_seed_contribution(left, right, s, seeds) for left, right in pairs) / len(pairs)
        for s in seeds
    ]
    sd = math.sqrt(math.fsum(each**2 for each in contributions) / (n - 1))
    half = t_quantile(1 - ALPHA / 2, n - 1) * sd / math.sqrt(n)
    return Improvement(value, n, value - half, value + half)


def _seed_contribution(
    left: Mapping[int, float], right: Mapping[int, float], seed: int, seeds: Sequence[int]
) -> float:
    """Return a seed's first-order contribution to top / bottom: (x - ratio y) / bottom.

    The contributions of all seeds sum to 0.
    """
    top = math.fsum(left[s] for s in seeds) / len(seeds)
    bottom = math.fsum(right[s] for s in seeds) / len(seeds)
    return (left[seed] - top / bottom * right[seed]) / bottom


def _fieller(
    x: Sequence[float], y: Sequence[float], top: float, bottom: float
) -> tuple[float, float] | None:
    """Return the bounds of top / bottom - 1.

    Return None if bottom is not distinguishable from 0: the bounds would be infinite.
    """
    n = len(x)
    scale = t_quantile(1 - ALPHA / 2, n - 1) ** 2 / (n * (n - 1))
    xx = scale * math.fsum((a - top) ** 2 for a in x)
    yy = scale * math.fsum((b - bottom) ** 2 for b in y)
    xy = scale * math.fsum((a - top) * (b - bottom) for a, b in zip(x, y, strict=True))
    # The bounds are the roots of a r^2 - 2 b r + c.
    a, b, c = bottom**2 - yy, top * bottom - xy, top**2 - xx
    if a <= 0:
        return None
    root = math.sqrt(max(b**2 - a * c, 0.0))
    return (b - root) / a - 1, (b + root) / a - 1


# Tests that are valid for any number of looks at the data and any reason to add seeds.


PRIOR_VARIANCES = (1.0, 30.0, 1000.0)
"""Prior variances of the effect, in standard deviations between seeds: for small effects, for large
effects, and for sides whose seeds hardly differ. The evidence is the mean over the three."""
MAX_SEEDS = 1000
"""Maximum of every search for a number of seeds. More seeds count as impossible."""
POWER = 0.8
"""The probability with which the number of seeds that is named decides a claim."""


def log_evidence(t: float, n: int) -> float:
    """Return the log of the evidence of `n` differences with this t statistic against a mean of 0.

    For a prior variance g and V = 1 + n g it is ((1 + u) / (1 + u / V))^(n / 2) / sqrt(V), with
    u = t^2 / (n - 1).
    """
    u = t * t / (n - 1)
    logs = [
        n / 2 * (math.log1p(u) - math.log1p(u / (1 + n * g))) - math.log1p(n * g) / 2
        for g in PRIOR_VARIANCES
    ]
    top = max(logs)  # log-sum-exp: exp of a large log would overflow
    return top + math.log(math.fsum(math.exp(each - top) for each in logs) / len(logs))


def anytime_p(effect: Estimate, bound: float) -> tuple[float, float]:
    """Return p of "the mean is not above `bound`" and p of "the mean is not below it".

    If the hypothesis is true, twice the smaller p ever falls to alpha with probability at most
    alpha. Both are 0.5 with one seed, or if the mean equals the bound. If all seeds have the same
    value, use the sign test. It needs no correction: n equal signs include n - 1 equal signs.
    """
    if effect.n < 2 or math.isclose(effect.mean, bound, abs_tol=1e-12):
        return 0.5, 0.5
    if effect.sd < SMALLEST_SD:
        p = 0.5**effect.n
    else:
        t = (effect.mean - bound) / (effect.sd / math.sqrt(effect.n))
        p = min(1.0, math.exp(-log_evidence(t, effect.n))) / 2
    return (p, 1 - p) if effect.mean > bound else (1 - p, p)


def anytime_two_sided_p(effect: Estimate | None) -> float:
    """Return p of "the mean is 0", or 1 without an effect or with one seed."""
    if effect is None or effect.n < 2:
        return 1.0
    return min(1.0, 2 * min(anytime_p(effect, 0.0)))


def anytime_interval(effect: Estimate, alpha: float) -> tuple[float, float] | None:
    """Return the interval that contains the mean at every look with probability 1 - alpha.

    Return None if no finite interval does: with one seed, or with too few seeds for this alpha.
    """
    if effect.n < 2:
        return None
    reach = t_reach(effect.n, alpha)
    if reach is None:
        return None
    half = reach * effect.sd / math.sqrt(effect.n)
    return effect.mean - half, effect.mean + half


@lru_cache(maxsize=4096)
def t_reach(n: int, alpha: float) -> float | None:
    """Return the smallest t statistic that decides with `n` differences at level alpha, or None."""
    wanted = -math.log(alpha)
    high = 1.0
    while log_evidence(high, n) < wanted:
        high *= 2
        # The evidence is bounded in t: with few differences no t statistic reaches the level.
        if high > 1e6:
            return None
    return _root(lambda t: log_evidence(t, n) - wanted, 0.0, high)


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    # 60 halvings bring the interval below the precision of a float.
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) >= 0 else (middle, high)
    return high


def anytime_p_between(left: Rate, right: Rate) -> tuple[float, float]:
    """Return p of "the left share is not above the right one", and of "it is not below it"."""
    mixture = _log_mixture(left.count, left.n) + _log_mixture(right.count, right.n)
    free = _log_likelihood(left.count, left.n) + _log_likelihood(right.count, right.n)
    pooled = _log_likelihood(left.count + right.count, left.n + right.n)
    # Multiplied instead of divided: whole numbers compare without rounding.
    above = left.count * right.n > right.count * left.n
    below = left.count * right.n < right.count * left.n
    # Under "not above", a left share that lies above is likeliest where both shares are equal.
    not_above = pooled if above else free
    not_below = pooled if below else free
    return _p(mixture - not_above), _p(mixture - not_below)


def anytime_p_of_share(share: Rate, bound: float) -> tuple[float, float]:
    """Return p of "the share is not above `bound`", and of "it is not below it"."""
    if not 0 <= bound <= 1:
        return (0.0, 1.0) if bound < 0 else (1.0, 0.0)
    mixture = _log_mixture(share.count, share.n)
    free = _log_likelihood(share.count, share.n)
    at_bound = _log_likelihood(share.count, share.n, bound)
    above = share.count > bound * share.n
    below = share.count < bound * share.n
    return _p(mixture - (at_bound if above else free)), _p(mixture - (at_bound if below else free))


def _p(log_e: float) -> float:
    """Return the p-value of a one-sided hypothesis from the log of the evidence against it."""
    # exp of a larger number would round p to 0, and no p-value is 0.
    return min(1.0, math.exp(-min(log_e, 700.0)))


def _log_mixture(count: int, n: int) -> float:
    """Return the log of the likelihood of `count` of `n`, averaged over Beta(1/2, 1/2)."""
    return _log_beta(count + 0.5, n - count + 0.5) - _log_beta(0.5, 0.5)


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _log_likelihood(count: int, n: int, share: float | None = None) -> float:
    """Return the log-likelihood of `count` of `n` at a share, by default the most likely one."""
    from scipy.special import xlogy

    best = count / n if share is None and n else share or 0.0
    # xlogy(0, 0) is 0: what never happened may have the chance 0.
    return float(xlogy(count, best) + xlogy(n - count, 1 - best))


# ---------------------------------------------------------------- seeds that would decide


def seeds_to_decide(distance: float, sd: float, alpha: float) -> int | None:
    """Return the number of seeds that decides a mean `distance` away from a bound with power 0.8.

    Return None if no number up to MAX_SEEDS suffices. Assume that distance and sd are exact.
    """
    if not distance:
        return None
    if sd < SMALLEST_SD:
        # All seeds have one sign, and the two-sided sign test decides at 2 / 2^n below alpha.
        return math.floor(math.log2(2 / alpha)) + 1

    def enough(n: int) -> bool:
        reach = t_reach(n, alpha)
        if reach is None:
            return False
        return math.sqrt(n) * abs(distance) >= (reach + t_quantile(POWER, n - 1)) * sd

    low, high = 1, 2
    while not enough(high):
        low, high = high, high * 2
        if low >= MAX_SEEDS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high if high <= MAX_SEEDS else None
