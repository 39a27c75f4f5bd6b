"""What the reward of a run did: it rose, it fell, or neither."""

import math
from dataclasses import dataclass

import numpy as np

from orchestrator.audit.diagnose.trace import FEWEST_STEPS, Series, Trace, noise, running_mean

REWARD = "train/reward_mean"


@dataclass(frozen=True)
class Course:
    """The reward of a run, and what it did."""

    rewards: Series
    smooth: Series
    """The mean over the last `window` steps, at each step."""
    start: float
    best: float
    end: float
    rose: bool
    """The best mean is above the first by more than noise, and by a twentieth of the largest."""
    fell: bool
    """The last mean is below the best by more than noise, and by a quarter of the largest."""
    at_fall: int | None
    """Index at which a quarter of the loss is lost; None: it did not fall."""

    @property
    def before_the_fall(self) -> slice:
        """Return the steps before the fall; all, if there is none."""
        return slice(0, len(self.rewards) if self.at_fall is None else max(self.at_fall, 3))


def course_of(trace: Trace) -> Course | None:
    """Return the course of a run; None for a log with fewer than FEWEST_STEPS rewards."""
    rewards = trace.get(REWARD)
    if rewards is None or np.isfinite(rewards).sum() < FEWEST_STEPS:
        return None
    window = trace.window
    few = max(3, window // 3)  # the start is short: a policy that learns has left it soon
    smooth = running_mean(rewards, window)
    full = smooth.copy()
    full[: min(window - 1, len(full) - 1)] = np.nan
    start, end = float(np.nanmean(rewards[:few])), float(np.nanmean(rewards[-window:]))
    at_best = int(np.nanargmax(full))
    best = float(full[at_best])
    error = 4 * noise(rewards) * math.sqrt(1 / window + 1 / few)
    largest = max(abs(start), abs(best), abs(end))
    fell = best - end > max(error, 0.25 * largest)
    below = np.flatnonzero(smooth[at_best:] < best - 0.25 * (best - end))
    return Course(
        rewards,
        smooth,
        start,
        best,
        end,
        rose=best - start > max(error, 0.05 * largest),
        fell=fell,
        at_fall=at_best + int(below[0]) if fell and len(below) else None,
    )
