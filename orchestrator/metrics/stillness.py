"""Runs that train and learn nothing: their gradient is exactly 0, step after step.

Where every rollout of a group has the same reward every advantage is 0, and so is the gradient. A
reward that scores all text alike (it is handed text that it cannot read, its data has no answers)
looks like a run that is merely slow, so it is told.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from orchestrator.records import MetricPoint

SHORTEST = 3
"""Consecutive points; a batch or two may be all right or all wrong by chance."""
BEST = 1.0
"""The highest score of every reward rule: where all rollouts are right, there is nothing to say."""
GRADIENT, REWARD = "train/grad_norm", "train/reward_mean"


class Stillness(NamedTuple):
    """Train steps without any gradient."""

    first: int
    last: int
    num_points: int
    reward: float | None
    """What every one of them gave on average; None where the log does not say."""

    def sentence(self, cell: str) -> str:
        """Return what happened to a cell, the likely cause, and what to look at."""
        score = "the same score" if self.reward is None else f"the same score ({self.reward:g})"
        return (
            f"{cell}: nothing was learnt from train step {self.first} to {self.last}: the gradient "
            f"is exactly 0 in {self.num_points} logged steps in a row. Every advantage is 0 there; "
            f"most likely the reward gives {score} to every rollout. Look at decoded responses and "
            "what the reward makes of them (its text, its labels), or take easier prompts"
        )


def stillness(points: Iterable[MetricPoint]) -> Stillness | None:
    """Return the longest stretch of points with a gradient of 0 and a constant reward.

    Return None where it is shorter than SHORTEST, or every rollout of it had the best reward.
    """
    runs: list[list[MetricPoint]] = [[]]
    for point in points:
        gradient = point.values.get(GRADIENT)
        if gradient is None:
            continue
        if gradient != 0:
            runs.append([])
            continue
        if runs[-1] and point.values.get(REWARD) != runs[-1][-1].values.get(REWARD):
            runs.append([])
        runs[-1].append(point)
    return max(filter(None, map(_told, runs)), key=lambda each: each.num_points, default=None)


def _told(points: Sequence[MetricPoint]) -> Stillness | None:
    if len(points) < SHORTEST or points[0].values.get(REWARD) == BEST:
        return None
    reward = points[0].values.get(REWARD)
    return Stillness(points[0].step, points[-1].step, len(points), reward)
