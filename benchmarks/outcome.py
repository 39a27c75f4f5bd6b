"""How often the rule of outcomes errs: python benchmarks/outcome.py [runs a row].

Prints the tables of orchestrator/analysis/README.md, from drawn rewards with planted truth.
"""

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np

from orchestrator.metrics.outcome import REWARD, WINDOW, judge
from orchestrator.records import MetricPoint

Curve = Any
"""[steps], the true reward at each train step."""
LEVELS = (0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8, 0.95)
DEVIATIONS = (0.01, 0.03, 0.08)
LENGTHS = (100, 250, 500, 1000)
ENOUGH = 6.0
"""Standard errors of a window from which on a fall must be found."""
FALLS: dict[str, tuple[int, Callable[[Curve, int], Curve]]] = {
    # (train steps before the fall that tell the reward, share of the fall at each step)
    "at 60 %, for good": (WINDOW, lambda t, n: t >= 0.6 * n),
    "with 10 steps left": (WINDOW, lambda t, n: t >= n - 10),
    "slow, over half the run": (WINDOW, lambda t, n: ((t - 0.25 * n) / (0.5 * n)).clip(0, 1)),
    "early, at step 15": (WINDOW, lambda t, _: t >= 15),
    "in steps 2 to 5": (1, lambda t, _: (t / 4).clip(0, 1)),
    "for 20 steps, then back": (WINDOW, lambda t, n: (t >= n // 2) & (t < n // 2 + 20)),
}
SIZES = {"to a fifth": 0.8, "by a third": 1 / 3}


def kind(rewards: Curve, num_rollouts: int = 10**9) -> str:
    """Return the kind of outcome of these rewards."""
    points = [MetricPoint(i, 0.0, {REWARD: float(r)}) for i, r in enumerate(rewards, 1)]
    settings: Any = SimpleNamespace(
        num_train_steps=len(rewards),
        batch=SimpleNamespace(num_prompts=num_rollouts),
        rollout=SimpleNamespace(group_size=1, max_response_tokens=1),
    )
    return judge(points, settings).kind


def errors_of(fall: float, deviation: float, before: int) -> float:
    """Return a fall in standard errors of a window of 10 steps, or of the steps before it."""
    return fall / (deviation * math.sqrt(1 / before if before == WINDOW else 1 + 1 / WINDOW))


def constant(runs: int, random: np.random.Generator) -> Iterator[tuple[str, Counter[str]]]:
    """Yield length and deviation, and the kinds of runs with a constant reward of some level."""
    for length, deviation in product(LENGTHS, DEVIATIONS):
        counts: Counter[str] = Counter()
        for level in LEVELS:
            noise = random.standard_normal((runs, length))
            counts.update(map(kind, level + deviation * noise))
        yield f"{length} steps, deviation {deviation}", counts


def falling(
    runs: int, random: np.random.Generator
) -> Iterator[tuple[str, Counter[str], Counter[str]]]:
    """Yield a fall, and the kinds of runs with at least ENOUGH standard errors of it, and less."""
    for (size, share), (name, (before, shape)) in product(SIZES.items(), FALLS.items()):
        counts: tuple[Counter[str], Counter[str]] = Counter(), Counter()
        for length, deviation, level in product(LENGTHS, DEVIATIONS, LEVELS):
            curve = level * (1 - share * shape(np.arange(length), length))
            enough = errors_of(share * level, deviation, before) >= ENOUGH
            noise = random.standard_normal((runs, length))
            counts[not enough].update(map(kind, curve + deviation * noise))
        yield f"{size}, {name}", *counts


def others(runs: int, random: np.random.Generator) -> Iterator[tuple[str, Counter[str]]]:
    """Yield curves without a fall: learning ones, drawn answers, and correlated noise."""
    for length in (100, 500):
        t = np.arange(length) / length
        curves = {
            "rising from 0.2 to 0.8": 0.2 + 0.6 * t,
            "saturating at 0.9": 0.9 - 0.6 * np.exp(-6 * t),
            "flat for a fifth, then rising": 0.3 + 0.5 * (t - 0.2).clip(0, 0.6),
            "zero, rising at the end": 0.5 * (10 * (t - 0.9)).clip(0, 1),
            "0.02, nothing learnt": np.full(length, 0.02),
        }
        for name, curve in curves.items():
            drawn = random.binomial(80, curve, (runs, length)) / 80
            yield f"{length} steps, 80 answers: {name}", Counter(kind(r, 80) for r in drawn)
        for correlation in (0.3, 0.5, 0.7):
            noise = random.standard_normal((runs, length))
            for i in range(1, length):
                noise[:, i] *= math.sqrt(1 - correlation**2)
                noise[:, i] += correlation * noise[:, i - 1]
            for level in (0.3, 0.6):
                name = f"{length} steps at {level}, deviation 0.06, correlation {correlation}"
                yield name, Counter(map(kind, level + 0.06 * noise))


def shares(counts: Counter[str]) -> str:
    """Return the shares of flagged, stable and unclear runs, as fields of a table."""
    total = counts.total()
    if not total:
        return "- | - | -"
    flagged = counts["unstable"] + counts["collapsed"]
    return " | ".join(
        f"{100 * n / total:.1f}" for n in (flagged, counts["trained"], counts["unclear"])
    )


def main(runs: int) -> None:
    """Print the tables, in percent."""
    random = np.random.default_rng(49)
    sys.stdout.write("| no fall | flagged | stable | cannot tell |\n|---|---|---|---|\n")
    for name, counts in (*constant(runs, random), *others(runs * 4, random)):
        sys.stdout.write(f"| {name} | {shares(counts)} |\n")
    sys.stdout.write(
        "\n| fall | found | stable | cannot tell | smaller: found | stable | cannot tell |\n"
    )
    sys.stdout.write("|---|---|---|---|---|---|---|\n")
    for name, enough, less in falling(max(1, runs // 4), random):
        sys.stdout.write(f"| {name} | {shares(enough)} | {shares(less)} |\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
