"""The rule of outcomes, on rewards with planted truth."""

import math
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from orchestrator.metrics.outcome import REWARD, WINDOW, judge
from orchestrator.records import MetricPoint, Outcome

Judge = Callable[..., Outcome]
NAN = float("nan")
Curve = Any
"""[steps], the true reward at each train step."""
LEVELS = (0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8, 0.95)
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


def kind(rewards: Curve) -> str:
    """Return the kind of outcome of these rewards."""
    points = [MetricPoint(i, 0.0, {REWARD: float(r)}) for i, r in enumerate(rewards, 1)]
    settings: Any = SimpleNamespace(
        num_train_steps=len(rewards),
        batch=SimpleNamespace(num_prompts=10**9),
        rollout=SimpleNamespace(group_size=1, max_response_tokens=1),
    )
    return judge(points, settings).kind


def errors_of(fall: float, deviation: float, before: int) -> float:
    """Return a fall in standard errors of a window of 10 steps, or of the steps before it."""
    return fall / (deviation * math.sqrt(1 / before if before == WINDOW else 1 + 1 / WINDOW))


@pytest.fixture
def judged(synthetic: Any) -> Judge:
    """The outcome of a run with these rewards, and with other metrics of the same length."""

    def of(rewards: Iterable[float], series: Mapping[str, Iterable[float]] = {}) -> Outcome:
        columns = {"train/reward_mean": list(rewards), **series}
        rows = zip(*columns.values(), strict=True)
        points = [
            MetricPoint(step, 0.0, dict(zip(columns, row, strict=True)))
            for step, row in enumerate(rows, 1)
        ]
        settings = synthetic.run(steps=max(1, len(points))).records[0].cell.settings
        return judge(points, settings)

    return of


def noisy(curve: Any, deviation: float, seed: int = 0) -> Any:
    curve = np.asarray(curve)
    return curve + deviation * np.random.default_rng(seed).standard_normal(curve.shape)


def test_a_run_that_dies_in_its_first_steps_has_collapsed(judged: Judge) -> None:
    outcome = judged([0.28, 0.17, 0.09, *[0.0] * 96])
    assert (outcome.kind, outcome.cause) == ("collapsed", "reward")
    assert outcome.step in (2, 3)
    assert "fell from 0.280 to 0.000" in outcome.reason
    assert judged([0.3, *[0.0] * 59]).kind == "collapsed"


@pytest.mark.parametrize(
    ("end", "cause"),
    [((6.0, 0.3), "reward"), ((1024.0, 0.3), "length"), ((6.0, 0.001), "entropy")],
)
def test_a_collapse_says_when_and_what_the_policy_became(
    end: tuple[float, float], cause: str, judged: Judge
) -> None:
    rewards = noisy([*[0.8] * 50, *[0.01] * 50], 0.02)
    lengths, entropies = ([x] * 50 + [y] * 50 for x, y in zip((6.0, 0.3), end, strict=True))
    outcome = judged(rewards, {"rollout/response_tokens": lengths, "train/entropy": entropies})
    assert (outcome.kind, outcome.cause, outcome.step) == ("collapsed", cause, 51)


def test_a_fall_that_ends_above_a_third_or_is_made_good_is_unstable(judged: Judge) -> None:
    assert judged(noisy([*[0.9] * 60, *[0.5] * 40], 0.03)).kind == "unstable"
    recovered = judged(noisy([*[0.8] * 30, *[0.1] * 20, *[0.8] * 50], 0.03))
    assert (recovered.kind, recovered.cause) == ("unstable", "reward")
    assert abs(recovered.step - 31) <= 4
    one_bad_step = noisy([*[0.8] * 40, 0.0, *[0.8] * 40], 0.03)
    assert judged(one_bad_step).kind == "trained", "a fall lasts for ten steps"


def test_numbers_that_are_not_finite_to_the_end_are_a_collapse(judged: Judge) -> None:
    gradients = [*[1.0] * 40, NAN, *[1.0] * 9, *[float("inf"), NAN] * 5]
    outcome = judged([0.5] * 60, {"train/grad_norm": gradients})
    assert (outcome.kind, outcome.cause, outcome.step) == ("collapsed", "nan", 51)
    assert "train/grad_norm" in outcome.reason
    once = [*[1.0] * 40, NAN, *[1.0] * 19]
    assert judged([0.5] * 60, {"train/grad_norm": once}).kind == "trained"
    overflow = [*[1.0] * 59, float("inf")]
    assert judged([0.5] * 60, {"train/kl_term": overflow}).kind == "trained"


def test_what_is_too_short_or_too_noisy_is_not_called_stable(judged: Judge) -> None:
    assert judged([0.5] * 19).kind == "unclear"
    assert judged([]).kind == "unclear"
    outcome = judged(noisy([0.1] * 200, 0.08))
    assert outcome.kind == "unclear"
    assert outcome.collapsed is None
    assert "noise of one step's reward, 0.076" in outcome.reason
    uneven = judged(noisy([0.45] * 200, 0.1))
    assert (uneven.kind, uneven.collapsed) == ("unclear", False), "no fall to a third either"


@pytest.mark.parametrize("deviation", [0.01, 0.03, 0.08])
def test_noise_is_not_called_a_fall(deviation: float) -> None:
    kinds = [
        kind(noisy(np.full(length, level), deviation, seed))
        for level in LEVELS
        for length in (100, 400)
        for seed in range(12)
    ]
    flagged = sum(each in ("unstable", "collapsed") for each in kinds)
    assert flagged <= 0.01 * len(kinds)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", FALLS)
def test_falls_are_found_and_never_called_stable(name: str, size: str) -> None:
    before, shape = FALLS[name]
    found, missed = [], []
    for length, deviation, level in ((100, 0.03, 0.3), (400, 0.08, 0.8), (100, 0.08, 0.3)):
        curve = level * (1 - SIZES[size] * shape(np.arange(length), length))
        kinds = [kind(noisy(curve, deviation, seed)) for seed in range(20)]
        enough = errors_of(SIZES[size] * level, deviation, before) >= 6
        (found if enough else missed).extend(kinds)
    flagged = [each in ("unstable", "collapsed") for each in found]
    assert sum(flagged) >= 0.95 * len(flagged)
    assert missed.count("trained") <= 0.1 * len(missed)
