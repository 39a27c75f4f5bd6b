"""What the reward of a run did: it rose, it fell, or neither."""

import math
from dataclasses import dataclass

import numpy as np

from orchestrator.audit.diagnose.trace import FEWEST_STEPS, Series, noise, running_mean, window_of

REWARD = "train/reward_mean"
_MEAN_MOVE = 2 / math.sqrt(math.pi)
"""Mean distance of two normal values, in standard deviations."""


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
    """The best mean is above the first by a twentieth of the largest, and by more than noise or
    with a line that climbs."""
    fell: bool
    """The last mean is below the best by more than noise, by a quarter of the larger of the two,
    and by an eighth of what was won."""
    climbs: bool
    """A line through all rewards rises by more than three standard errors."""
    at_fall: int | None
    """Index at which a quarter of the loss is lost; None: it did not fall."""
    error_of_start: float
    """Standard error of `start`."""

    @property
    def won(self) -> bool:
        """Return whether a rate ends near 1."""
        return self.end > 0.8 and self.is_rate

    @property
    def is_rate(self) -> bool:
        """Return whether each reward is within 0 and 1."""
        return bool(np.nanmin(self.rewards) >= 0 and np.nanmax(self.rewards) <= 1)

    @property
    def before_the_fall(self) -> slice:
        """Return the steps before the fall; all, if there is none."""
        return slice(0, len(self.rewards) if self.at_fall is None else max(self.at_fall, 3))


def course_of(values: Series | None) -> Course | None:
    """Return the course of a score over the train steps; None with fewer than FEWEST_STEPS values.

    Steps without a value do not count: some libraries log the reward once for each rollout batch.
    """
    if values is None or (where := np.flatnonzero(np.isfinite(values))).size < FEWEST_STEPS:
        return None
    rewards = values[where]
    window = window_of(len(rewards))
    few = max(3, window // 3)  # the start is short: a policy that learns has left it soon
    smooth = running_mean(rewards, window)
    full = smooth.copy()
    full[: min(window - 1, len(full) - 1)] = np.nan
    start = float(np.mean(rewards[:few]))
    end = float(np.mean(rewards[-window:]))
    at_best = int(np.nanargmax(full))
    best = float(full[at_best])
    # The median of moves has no part in the few large ones of a reward that is often one number.
    deviation = max(noise(rewards), float(np.mean(np.abs(np.diff(rewards)))) / _MEAN_MOVE)
    error = 4 * deviation * math.sqrt(1 / window + 1 / few)
    largest = max(abs(start), abs(best), abs(end))
    count = len(rewards)
    slope = float(np.polyfit(np.arange(count), rewards, 1)[0])
    # The error of a line's rise over `count` values, each with this deviation.
    climbs = end > start and slope * count > 3 * deviation * math.sqrt(12 / count)
    error_of_fall = 4 * deviation * math.sqrt(2 / window)
    fell = best - end > max(error_of_fall, 0.25 * max(abs(best), abs(end)), (best - start) / 8)
    below = np.flatnonzero(smooth[at_best:] < best - 0.25 * (best - end))
    latest = np.maximum(np.searchsorted(where, np.arange(len(values)), side="right") - 1, 0)
    return Course(
        values,
        smooth[latest],
        start,
        best,
        end,
        rose=best - start > max(0.0 if climbs else error, 0.05 * largest),
        fell=fell,
        climbs=climbs,
        at_fall=int(where[at_best + int(below[0])]) if fell and len(below) else None,
        error_of_start=deviation / math.sqrt(few),
    )
