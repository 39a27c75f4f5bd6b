"""Tests that are valid for any number of looks at the data and any reason to add seeds.

Experiments grow because of their results: three seeds, not decided, eight more. A test for a fixed
number of seeds then makes too many false claims. In this module the evidence against a hypothesis
is a test martingale: its expectation is at most 1 at every number of seeds and at any stopping
time. So the probability that it ever reaches 1/alpha is at most alpha (Ville's inequality), and
p = 1/evidence is a p-value at every look.

means    The t statistic of the differences, under a mixture of normal priors on the standardised
         effect and the right-Haar prior on the spread (Lai 1976; Hendriksen, de Heide and Gruenwald
         2021; Wang and Ramdas 2023). Exact for normal differences.
shares   The Beta(1/2, 1/2) mixture of the binomial over the largest likelihood that the hypothesis
         allows (Robbins 1970; Wasserman, Ramdas and Balakrishnan 2020). Exact.

`python benchmarks/sequential.py` measures their error rates under extensions, and their cost in
seeds.
"""

import math
from collections.abc import Callable
from functools import lru_cache

from orchestrator.analysis.stats import SMALLEST_SD, Estimate, Rate, t_quantile

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
    best = count / n if share is None and n else share or 0.0
    total = 0.0
    for times, chance in ((count, best), (n - count, 1 - best)):
        # 0 log 0 is 0 here: what never happened may have the chance 0.
        if times:
            total += times * math.log(chance) if chance > 0 else -math.inf
    return total


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


def range_of_seeds(
    distance: float, sd: float, n: int, alpha: float
) -> tuple[int | None, int | None]:
    """Return the fewest and the most seeds that would decide, estimated from `n` seeds.

    Each number comes from one end of the distance's interval (each end is one-sided 90 %), with
    the measured spread. Few seeds give a wide range. An end is None if it exceeds MAX_SEEDS.
    """
    if sd < SMALLEST_SD or n < 2:
        seeds = seeds_to_decide(distance, sd, alpha)
        return seeds, seeds
    off = t_quantile(0.9, n - 1) * sd / math.sqrt(n)
    near, far = max(0.0, abs(distance) - off), abs(distance) + off
    return seeds_to_decide(far, sd, alpha), seeds_to_decide(near, sd, alpha)
