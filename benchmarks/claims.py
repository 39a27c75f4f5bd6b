"""False claims, power and coverage of the tests by which claims are judged.

python benchmarks/claims.py [FAMILIES]

A family is a grid of 61 configurations and 15 claims. A claim is the mean over 1, 2 or 4 settings
of left minus right. The variances of configurations are as spread as those of a measured run of
experiments/comedy_full.yaml with three seeds (scaled inverse chi-square with 2.6 degrees, deviation
0.0325), or more so, or all equal, or one in five is a hundred times larger. A false claim is a
verdict where nothing differs, on any claim of the family, at the level of the planned look (0.035
of 0.05). Coverage is that of the 95 % interval of one claim.
"""

import sys
import warnings
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import chdtri, digamma, ndtr, polygamma

from orchestrator.analysis.stats import (
    ALPHA,
    DEGREES,
    SURE,
    PooledEffect,
    WeightedMean,
    level_of_look,
    p_between_shares,
    variance_prior,
)

CONFIGURATIONS, DRAWS = 61, 200
SETTINGS = (4, 2, 2, 4, 4, 4, 2, 2, 2, 2, 2, 2, 1, 1, 1)
"""The number of settings of each claim."""
KINDS = "normal spread equal unequal t3 skewed shared rounded collapse fall".split()  # noqa: SIM905  (as a list it takes ten lines)
"""t3: with 3 degrees. spread: variances of one degree. shared: half of a run's noise is its seed's.
rounded: to 1/64. collapse: one run in twenty has no value. fall: one ends lower by 0.3 to 0.8."""
LEVEL = level_of_look([3])


def sides() -> list[tuple[Any, Any]]:
    """Return the left and the right configurations of each claim."""
    rng = np.random.default_rng(7)
    picks = [rng.choice(CONFIGURATIONS, 2 * k, replace=False) for k in SETTINGS]
    return [(pick[: len(pick) // 2], pick[len(pick) // 2 :]) for pick in picks]


def families(kind: str, count: int, seeds: int, rng: Any) -> Any:
    """Return values [families, configurations, seeds], NaN where a run collapsed, in which no
    configuration differs from another."""
    shape = (count, CONFIGURATIONS, seeds)
    if kind == "equal":
        deviations = np.full(shape[:2], 0.0325)
    elif kind == "unequal":
        deviations = np.where(rng.random(shape[:2]) < 0.2, 0.325, 0.0325)
    else:
        degrees = 1.0 if kind == "spread" else 2.6
        spreads = np.sqrt(degrees / rng.chisquare(degrees, shape[:2]))
        deviations = np.minimum(0.0325 * spreads, 0.4)
    if kind == "t3":
        noise = rng.standard_t(3, shape) / np.sqrt(3)
    elif kind == "skewed":
        noise = rng.exponential(1.0, shape) - 1
    else:
        noise = rng.standard_normal(shape)
    if kind == "shared":
        common = rng.standard_normal((count, 1, seeds))
        noise = np.sqrt(0.5) * (common + noise)
    values = noise * deviations[:, :, None]
    if kind == "rounded":
        values = np.round(values * 64) / 64
    if kind == "collapse":
        values = np.where(rng.random(shape) < 0.05, np.nan, values)
    if kind == "fall":
        falls = rng.random(shape) < 0.05
        values = values - falls * rng.uniform(0.3, 0.8, shape)
    return values


def batches(kind: str, count: int, seeds: int, rng: Any) -> Any:
    """Yield families, so many at a time that they fit into memory."""
    for start in range(0, count, 250):
        yield families(kind, min(250, count - start), seeds, rng)


def prior_degrees(variances: Any, df: Any) -> tuple[Any, Any]:
    """Return degrees and variance of each family's prior, as `stats.variance_prior`."""
    known = (df > 0) & (variances > 1e-24)
    safe, least = np.where(known, variances, 1.0), np.maximum(df, 1)
    logs = np.where(known, np.log(safe) - digamma(least / 2) + np.log(least / 2), np.nan)
    count = known.sum(axis=1)
    largest = np.nanvar(logs, axis=1, ddof=1) * (count - 1) / chdtri(count - 1, SURE)
    excess = largest - np.nanmean(np.where(known, polygamma(1, least / 2), np.nan), axis=1)
    low, high = (np.full(len(excess), end) for end in DEGREES)
    for _ in range(30):
        degrees = np.sqrt(low * high)
        above = polygamma(1, degrees / 2) > excess
        low, high = np.where(above, degrees, low), np.where(above, high, degrees)
    scale = np.exp(np.nanmean(logs, axis=1) + digamma(degrees / 2) - np.log(degrees / 2))
    return degrees, scale


@lru_cache(maxsize=400)
def _inverse_chi_square(degrees: float) -> Any:
    """Return draws of degrees / chi-square, [configurations, DRAWS]."""
    rng = np.random.default_rng(int(degrees * 1000))
    return degrees / rng.chisquare(degrees, (CONFIGURATIONS, DRAWS))


def statistics(values: Any, shifts: Any = None) -> tuple[Any, Any]:
    """Return the effects [families, claims], and draws of their squared errors.

    `shifts`: the true effect of each claim, 0 by default.
    """
    n = np.isfinite(values).sum(axis=2)
    means = np.nansum(values, axis=2) / np.maximum(n, 1)
    spread = np.nansum((values - means[:, :, None]) ** 2, axis=2)
    df = np.maximum(n - 1, 0)
    variances = spread / np.maximum(df, 1)
    degrees, scale = prior_degrees(variances, df)
    total = degrees[:, None] + np.where(variances > 1e-24, df, 0)
    posterior = (degrees * scale)[:, None] + spread
    effects = np.zeros((len(n), len(SETTINGS)))
    squared = np.zeros((*effects.shape, DRAWS), dtype=np.float32)
    # Draws are shared by families of nearly equal degrees: steps of 3 %.
    steps = np.exp(np.round(np.log(total) / 0.03) * 0.03).round(3)
    drawn = np.empty((len(n), CONFIGURATIONS, DRAWS), dtype=np.float32)
    for step in np.unique(steps):
        rows, columns = np.nonzero(steps == step)
        drawn[rows, columns] = _inverse_chi_square(float(step))[columns]
    drawn *= (posterior / total / np.maximum(n, 1))[:, :, None]
    for i, (left, right) in enumerate(sides()):
        valid = (n[:, left] > 1) & (n[:, right] > 1)
        w = valid / np.maximum(valid.sum(axis=1), 1)[:, None]
        effects[:, i] = (w * (means[:, left] - means[:, right])).sum(axis=1)
        effects[:, i] += 0.0 if shifts is None else shifts[i]
        w2 = (np.concatenate([w, w], axis=1) ** 2).astype(np.float32)
        squared[:, i] = np.einsum("fc,fcd->fd", w2, drawn[:, np.concatenate([left, right])])
    return effects, squared


def pooled_p(effects: Any, squared_errors: Any) -> Any:
    """Return the two-sided p of orch's test that the effect is 0."""
    errors = np.sqrt(np.maximum(squared_errors, 1e-30))
    return 2 * ndtr(-np.abs(effects)[:, :, None] / errors).mean(axis=2)


def decided(p: Any, level: float) -> Any:
    """Return True where Holm's procedure rejects, [families, claims]."""
    order = np.argsort(p, axis=1)
    steps = level / (p.shape[1] - np.arange(p.shape[1]))
    first = np.logical_and.accumulate(np.take_along_axis(p, order, 1) < steps, axis=1)
    result = np.zeros(p.shape, dtype=bool)
    np.put_along_axis(result, order, first, 1)
    return result


def false_claims(kind: str, count: int, seeds: int) -> tuple[float, float]:
    """Return the share of families with a false claim, and of claims whose interval has 0."""
    rng = np.random.default_rng([seeds, KINDS.index(kind)])
    claimed, covered = 0, 0.0
    for family in batches(kind, count, seeds, rng):
        p = pooled_p(*statistics(family))
        claimed += int(decided(p, LEVEL).any(axis=1).sum())
        covered += float((p >= ALPHA).mean(axis=1).sum())
    return claimed / count, covered / count


def after_extensions(count: int, looks: tuple[int, ...]) -> float:
    """Return the share of families with a false claim at any of several looks at normal noise."""
    rng = np.random.default_rng(looks)
    claimed = 0
    for family in batches("normal", count, looks[-1], rng):
        at_any = np.zeros(len(family), dtype=bool)
        for index, n in enumerate(looks):
            level = level_of_look(looks[: index + 1])
            at_any |= decided(pooled_p(*statistics(family[:, :, :n])), level).any(axis=1)
        claimed += int(at_any.sum())
    return claimed / count


def power(count: int, seeds: int, effect: float) -> float:
    """Return the share of claims with this effect that are decided; 8 of 15 claims have one."""
    rng = np.random.default_rng([seeds, 99])
    with_effect = np.arange(len(SETTINGS)) < 8
    found = 0.0
    for family in batches("normal", count, seeds, rng):
        p = pooled_p(*statistics(family, effect * with_effect))
        found += float(decided(p, LEVEL)[:, with_effect].mean(axis=1).sum())
    return found / count


def shares(count: int, seeds: int, correlation: float) -> float:
    """Return how often equal shares (0.3) are told apart at 0.05: four settings share a seed."""
    rng = np.random.default_rng([seeds, int(correlation * 100)])
    apart = 0
    for _ in range(count):
        common = rng.random((2, seeds, 1))
        own = rng.random((2, seeds, 4))
        same = rng.random((2, seeds, 4)) < correlation
        left, right = (np.where(same, common, own) < 0.3).sum(axis=2)
        apart += 2 * min(p_between_shares(left.tolist(), right.tolist(), 4)) < ALPHA
    return apart / count


def promises(count: int, planned: int, effect: float, settings: int) -> float:
    """Return how often an open claim is decided by the seeds that it names, if what the planned
    seeds show is the truth."""
    rng = np.random.default_rng([planned, settings, int(effect * 1000)])
    weights = [1 / settings] * settings + [-1 / settings] * settings
    kept = told = 0

    def level(*seeds: int) -> float:
        return level_of_look([planned, *seeds]) / len(SETTINGS)

    def look(values: Any) -> PooledEffect:
        prior = variance_prior((each.var(ddof=1), len(each)) for each in values)
        sides = zip(weights, values, strict=False)
        means = [WeightedMean(w, x.mean(), len(x), x.var(ddof=1)) for w, x in sides]
        return PooledEffect(means, prior)

    while told < count:
        spreads = np.sqrt(2.6 / rng.chisquare(2.6, (CONFIGURATIONS, 1)))
        deviations = np.minimum(0.0325 * spreads, 0.4)
        first = rng.standard_normal((CONFIGURATIONS, planned)) * deviations
        first[:settings] += effect
        seen = look(first)
        if 2 * min(seen.tails(0.0)) < level():
            continue
        needed = seen.seeds_to_decide(abs(seen.mean) / seen.caution, planned, level)
        if needed is None or needed > 64:
            continue
        told += 1
        more = rng.standard_normal((CONFIGURATIONS, needed - planned)) * deviations
        more += first.mean(axis=1)[:, None]
        kept += 2 * min(look(np.concatenate([first, more], axis=1)).tails(0.0)) < level(needed)
    return kept / count


def main() -> None:
    """Print the tables."""
    # A claim of which all runs of a seed collapsed has no value there.
    warnings.simplefilter("ignore", RuntimeWarning)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 4000
    error = np.sqrt(ALPHA * (1 - ALPHA) / count)
    print(f"{count} families a row; one Monte Carlo error at {ALPHA:g}: {error:.4f}\n")
    print("| seeds | null | false families | coverage |\n|---|---|---|---|")
    for seeds in (3, 5, 6):
        for kind in KINDS:
            false, covered = false_claims(kind, count, seeds)
            print(f"| {seeds} | {kind} | {false:.3f} | {covered:.3f} |", flush=True)
    for looks in ((3, 8), (3, 8, 20), (5, 10, 20)):
        at, share = ", ".join(map(str, looks)), after_extensions(count, looks)
        print(f"\nfalse claims at any of the looks at {at} seeds: {share:.3f}", flush=True)
    print("\n| seeds | effect | decided |\n|---|---|---|")
    for seeds in (3, 5, 8, 20):
        for effect in (0.05, 0.1, 0.3):
            print(f"| {seeds} | {effect:g} | {power(count // 4, seeds, effect):.2f} |", flush=True)
    print("\n| planned seeds | settings | effect | decided by the seeds named |")
    print("|---|---|---|---|")
    for planned in (3, 6):
        for settings in (1, 2, 4):
            for effect in (0.03, 0.1):
                share = promises(count // 13, planned, effect, settings)
                print(f"| {planned} | {settings} | {effect:g} | {share:.2f} |", flush=True)
    print("\nequal shares of four settings told apart, one claim")
    for seeds in (3, 5, 8, 20):
        rates = [f"{shares(count, seeds, c):.3f}" for c in (0.0, 0.6, 0.95)]
        print(f"{seeds} seeds, correlation 0, 0.6, 0.95: {', '.join(rates)}", flush=True)


if __name__ == "__main__":
    main()
