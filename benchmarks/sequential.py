"""What verdicts keep when an experiment is looked at and extended, and what that costs in seeds.

python benchmarks/sequential.py [REPETITIONS]

Differences of seeds are normal. `once` is Student's t as if there were one look; `every look` is
what orch judges claims by (orchestrator/analysis/sequential.py). A false claim is a verdict under
no effect at all. The extensions: three seeds, then as many as were named, and again; or every
number of seeds from 2 to 64, stopping at the first verdict.
"""

import math
import sys

import numpy as np
from scipy.special import stdtrit

from orchestrator.analysis.stats import (
    ALPHA,
    MAX_SEEDS,
    POWER,
    SMALLEST_SD,
    Rate,
    anytime_p_between,
    anytime_p_of_share,
    log_evidence,
    seeds_to_decide,
    t_quantile,
    t_reach,
)

MOST = 64
COUNTS = range(2, MOST + 1)


def seeds_needed(distance: float, sd: float, alpha: float = ALPHA) -> int | None:
    """Return the number of seeds that separates a mean from a bound `distance` away, in one look.

    n >= ((t_{1-alpha/2} + t_{power}) sd / distance)^2, with n - 1 degrees of freedom. Return None
    if no number up to MAX_SEEDS suffices. Without spread, return the number for the sign test. The
    formula assumes that distance and sd are exact.
    """
    if distance and sd < SMALLEST_SD:
        return math.floor(math.log2(2 / alpha)) + 1
    n = np.arange(2, MAX_SEEDS + 1)
    reach = stdtrit(n - 1, 1 - alpha / 2) + stdtrit(n - 1, POWER)
    enough = np.sqrt(n) * abs(distance) >= reach * sd
    return int(n[enough.argmax()]) if enough.any() and distance else None


def reaches(alpha: float = ALPHA) -> dict[str, np.ndarray]:
    """Return for each rule the |t| from which n seeds decide, for every n of COUNTS."""
    return {
        "once": np.array([t_quantile(1 - alpha / 2, n - 1) for n in COUNTS]),
        "every look": np.array([t_reach(n, alpha) or np.inf for n in COUNTS]),
    }


def t_statistics(repetitions: int, effect: float, seed: int) -> np.ndarray:
    """Return [repetitions, counts]: t of the first n of MOST differences, for every n of COUNTS."""
    x = np.random.default_rng(seed).normal(effect, 1.0, size=(repetitions, MOST))
    n = np.arange(1, MOST + 1)
    mean = x.cumsum(axis=1) / n
    variance = ((x**2).cumsum(axis=1) - n * mean**2)[:, 1:] / (n[1:] - 1)
    return mean[:, 1:] / np.sqrt(np.maximum(variance, 1e-300) / n[1:])


def extended(t: np.ndarray, rule: str, reach: np.ndarray, most_looks: int) -> tuple[float, float]:
    """Return the share of experiments with a verdict by the end, and the mean number of seeds.

    Three seeds first; while nothing is decided, as many more as would decide what was seen.
    """
    decided, used = 0, 0
    for row in t:
        n = 3
        for _ in range(most_looks):
            if abs(row[n - 2]) >= reach[n - 2]:
                decided += 1
                break
            distance = abs(row[n - 2]) / np.sqrt(n)  # the effect in standard deviations
            named = seeds_needed(distance, 1.0) if rule == "once" else _named(distance)
            n = min(MOST, max(n + 1, named or MOST))
        used += n
    return decided / len(t), used / len(t)


def _named(distance: float) -> int | None:
    return seeds_to_decide(round(float(distance), 2), 1.0, ALPHA)


def coverage(t: np.ndarray, reach: np.ndarray) -> tuple[float, float]:
    """Return the share of intervals that hold 0 at 5 seeds, and at all numbers of seeds at once."""
    inside = np.abs(t) < reach
    return float(inside[:, 3].mean()), float(inside.all(axis=1).mean())


def false_shares(repetitions: int, chance: float, seed: int) -> tuple[float, float]:
    """Return how often equal shares are ever told apart, and one is ever told from its own value.

    Two sides of up to 30 runs that collapse with this chance, looked at after every run.
    """
    rng = np.random.default_rng(seed)
    apart = off = 0
    for _ in range(repetitions):
        left, right = (rng.random((2, 30)) < chance).cumsum(axis=1)
        pairs = [(int(a), int(b), n) for n, (a, b) in enumerate(zip(left, right, strict=True), 1)]
        apart += any(
            2 * min(anytime_p_between(Rate(a, n, 0, 1), Rate(b, n, 0, 1))) < ALPHA
            for a, b, n in pairs
        )
        off += any(
            2 * min(anytime_p_of_share(Rate(a, n, 0, 1), chance)) < ALPHA for a, _, n in pairs
        )
    return apart / repetitions, off / repetitions


def main() -> None:
    """Print false claims, coverage and the price in seeds."""
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    null, rules = t_statistics(repetitions, 0.0, 1), reaches()
    error = 1.96 * np.sqrt(ALPHA * (1 - ALPHA) / repetitions)
    print(f"{repetitions} experiments without an effect, level {ALPHA:.2f} (+- {error:.4f})")
    print("false claims                          once  every look")
    few = null[: min(repetitions, 4000)]
    for looks in (1, 2, 3, 6):
        shares = [extended(few, rule, reach, looks)[0] for rule, reach in rules.items()]
        name = "3 seeds, one look" if looks == 1 else f"3 seeds, {looks - 1} extension(s) as named"
        print(f"{name:35s}  {shares[0]:.3f}       {shares[1]:.3f}")
    ever = [float((np.abs(null) >= reach).any(axis=1).mean()) for reach in rules.values()]
    print(f"{f'a look at every n from 2 to {MOST}':35s}  {ever[0]:.3f}       {ever[1]:.3f}")
    print("coverage of the 95 % interval")
    shares = [coverage(null, reach) for reach in rules.values()]
    print(f"{'at 5 seeds':35s}  {shares[0][0]:.3f}       {shares[1][0]:.3f}")
    print(
        f"{f'at every n from 2 to {MOST} at once':35s}  {shares[0][1]:.3f}       {shares[1][1]:.3f}"
    )
    print("seeds for power 0.8                   once  every look")
    for effect in (0.5, 1.0, 2.0, 3.0, 5.0):
        once, every = seeds_needed(effect, 1.0), seeds_to_decide(effect, 1.0, ALPHA)
        t = t_statistics(min(repetitions, 20_000), effect, 2)
        hit = (np.abs(t) >= rules["every look"]).argmax(axis=1) + 2
        print(
            f"{f'effect of {effect:g} sd':35s}  {once!s:>5s}       {every!s:>5s}"
            f"   (stopping at the first verdict: {np.median(hit):.0f} in the median)"
        )
    print("collapse, looked at after each of 30 runs a side")
    for chance in (0.1, 0.5):
        apart, off = false_shares(min(repetitions, 1000), chance, 3)
        print(f"  share {chance}: equal shares ever told apart {apart:.3f}, from itself {off:.3f}")
    print(f"evidence at t = 4, 5 seeds: {np.exp(log_evidence(4.0, 5)):.1f}")


if __name__ == "__main__":
    main()
