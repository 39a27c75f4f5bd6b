"""Judge by the canonical curves of a run what training did: one rule for every library.

A fall is the best mean reward over a stretch of steps minus the mean over a later stretch. A
stretch has WINDOW steps, or twice, four times, ... as many. The earlier one may also be the FIRST
steps, whose reward is that before training; the later one the LAST steps. The noise is that of the
run: the differences of consecutive rewards, more if they are correlated, and no less than that of
drawn answers. A fall is sure if the square of its size in standard errors exceeds SURE + PER_TRY *
log(number of pairs of such stretches). orchestrator/analysis/README.md has how often this errs.
"""

import math
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from orchestrator.records import MetricPoint, Outcome
from orchestrator.settings import Settings

if TYPE_CHECKING:
    from numpy.typing import NDArray

WINDOW = 10
"""Train steps that a fall must last, unless it lasts to the end."""
SHORTEST = 2 * WINDOW
"""With fewer logged steps nothing is said."""
KNOWN = 0.9
"""Share of the train steps up to which the reward must be known."""
FALL = 0.2
"""Smallest fall that counts, as a share of the best mean reward."""
LOST = 1 / 3
"""A run that ends below this share of its best mean reward has collapsed."""
SEEN = 1 / 3
"""A run is stable only if a fall by this share is excluded."""
FIRST, LAST = (1, 2, 3, 5, 7), (3, 5, 7)
SURE, PER_TRY = 13.0, 2.5
"""Fitted by simulation: at most 1 % of the runs with a constant reward have a fall that is sure."""
EXCLUDED = 1.645
"""Standard errors between what was seen and what is excluded: one-sided 95 %."""
NO_ENTROPY = 0.02
"""Nats a token; below it the policy always says the same."""
TOO_LONG = 0.95
"""Share of max_response_tokens that the mean response fills."""
REWARD = "train/reward_mean"
FINITE = (REWARD, "train/policy_loss", "train/loss", "train/grad_norm", "train/entropy")
"""Metrics that are finite while training goes on. A KL may overflow for a step."""
RULE = (
    (
        "Collapsed: the reward ends below a third of its best, or a loss, gradient or reward is no "
        "number up to the end."
    ),
    (
        "Unstable: the reward fell by a fifth of its best or more, for ten train steps or up to "
        "the end, and by more than the noise of the run's own rewards explains."
    ),
    (
        "Stable: neither, and a fall by a third would have been seen; else: cannot tell. A stable "
        "run may have learnt nothing."
    ),
)
"""The rule in three lines, for readers."""


class Fall(NamedTuple):
    """A fall of the reward from a stretch of steps to a later one."""

    start: int
    """Index of the first step of the later stretch."""
    length: int
    """Number of steps of the later stretch."""
    best: float
    low: float
    errors: float
    """The fall in its standard errors."""


def judge(points: Sequence[MetricPoint], settings: Settings) -> Outcome:
    """Return the outcome of a run that has ended. `points`: by step, each step once."""
    broken = not_finite(points)
    if broken is not None:
        return diverged(*broken)
    known = [point for point in points if math.isfinite(point.values.get(REWARD, math.nan))]
    last, steps = known[-1].step if known else 0, settings.num_train_steps
    if len(known) < SHORTEST or last < KNOWN * steps:
        reason = (
            f"{len(known)} steps have a reward (it takes {SHORTEST}), the last is {last} of {steps}"
        )
        return Outcome(kind="unclear", reason=reason)
    curve = _Curve([point.values[REWARD] for point in known], settings)
    falls = list(curve.falls())
    if not falls:
        return curve.without_fall()
    lost = [f for f in falls if f.start + f.length == len(known) and f.low <= LOST * f.best]
    # The shortest stretches tell best when it fell, the deepest of them tells how far.
    length = min(fall.length for fall in lost or falls)
    alike = [fall for fall in lost or falls if fall.length == length]
    fall = max(alike, key=lambda each: each.best - each.low)
    step = known[curve.onset(fall.best) if lost else _onset(alike, fall)].step
    return Outcome(
        kind="collapsed" if lost else "unstable",
        cause=_cause(points, settings.rollout.max_response_tokens) if lost else "reward",
        step=step,
        reason=(
            f"the mean reward fell from {fall.best:.3f} to {fall.low:.3f} at train step {step} "
            f"({fall.errors:.1f} standard errors)"
        ),
    )


def _onset(falls: Sequence[Fall], deepest: Fall) -> int:
    """Return the index of the first step of a fall: of its first stretch that is half as deep."""
    half = (deepest.best - deepest.low) / 2
    start = min(fall.start for fall in falls if fall.best - fall.low >= half)
    return start + deepest.length // 2 if deepest.length >= WINDOW else start


def diverged(step: int, what: str) -> Outcome:
    """Return the outcome of training in which `what` was not finite from train step `step` on."""
    return Outcome(
        kind="collapsed", cause="nan", step=step, reason=f"{what} was not finite to the end"
    )


def not_finite(points: Sequence[MetricPoint]) -> tuple[int, str] | None:
    """Return the step from which on a metric was not finite to the end, and its name; else None."""
    earliest = None
    for name in FINITE:
        values = [(p.step, p.values[name]) for p in points if name in p.values]
        if values and not math.isfinite(values[-1][1]):
            healthy = max((i for i, (_, v) in enumerate(values) if math.isfinite(v)), default=-1)
            first = values[healthy + 1][0], name
            earliest = first if earliest is None else min(earliest, first)
    return earliest


def _cause(points: Sequence[MetricPoint], limit: int) -> Literal["length", "entropy", "reward"]:
    """Return what the policy turned into that lost its reward."""
    tokens = _values(points, "rollout/response_tokens")
    if tokens and fmean(tokens[-WINDOW:]) >= TOO_LONG * limit > fmean(tokens[:WINDOW]):
        return "length"
    entropy = _values(points, "train/entropy")
    return "entropy" if entropy and fmean(entropy[-WINDOW:]) < NO_ENTROPY else "reward"


def _values(points: Sequence[MetricPoint], name: str) -> list[float]:
    return [p.values[name] for p in points if math.isfinite(p.values.get(name, math.nan))]


class _Curve:
    """The rewards of one run, their noise, and the best mean before each step."""

    def __init__(self, rewards: Sequence[float], settings: Settings):
        import numpy as np

        self.rewards = np.array(rewards)
        self.variance, self.correlation = _noise(self.rewards)
        self.num_rollouts = settings.batch.num_prompts * settings.rollout.group_size
        self.lengths = [WINDOW]
        while 4 * self.lengths[-1] <= len(rewards):
            self.lengths.append(2 * self.lengths[-1])
        self.sums = np.concatenate([[0.0], np.cumsum(self.rewards)])
        before = (*FIRST, *self.lengths)
        self.best = np.full((len(before), len(self.sums)), np.nan)
        """[B, steps + 1], the best mean of the earlier stretches that end before each step."""
        for row, length in zip(self.best, before, strict=True):
            means = (self.sums[length:] - self.sums[:-length]) / length
            row[length:] = means[0] if length in FIRST else np.maximum.accumulate(means)
        self.noise_before = self._variance(self.best, np.array([[n] for n in before]))
        """[B, steps + 1], the variances of these means."""
        tries = [1.0 if length in FIRST else len(rewards) / length for length in before]
        self.tries_before = np.array(tries)[:, None]

    def falls(self) -> Iterator[Fall]:
        """Yield every fall that is sure."""
        import numpy as np

        for length, starts, low, tries in self._later(self.lengths):
            best = self.best[:, starts]
            noise = self.noise_before[:, starts] + self._variance(low, length)
            errors = (best - low) / np.sqrt(noise)
            sure = errors**2 > SURE + PER_TRY * np.log(tries * self.tries_before)
            for i, j in np.argwhere(sure & (low < (1 - FALL) * best)):
                values = float(best[i, j]), float(low[j]), float(errors[i, j])
                yield Fall(int(starts[j]), length, *values)

    def without_fall(self) -> Outcome:
        """Return the outcome of a run without a fall that is sure: trained, or unclear."""
        if self._excludes(SEEN):
            return Outcome(kind="trained")
        mean, noise = float(self.rewards.mean()), math.sqrt(self.variance)
        return Outcome(
            kind="unclear",
            survived=self._excludes(1 - LOST),
            reason=(
                f"the noise of one step's reward, {noise:.3f} at a mean of {mean:.3f}, may hide a "
                "fall by a third"
            ),
        )

    def _excludes(self, share: float) -> bool:
        """Return True if no fall by this share of the best reward can have happened."""
        import numpy as np

        level = np.nanmax(self.best[-1])
        for length, starts, low, _ in self._later([WINDOW]):
            best = self.best[:, starts]
            # From a low reward at first, no fall by a share of the later one is possible.
            fall = share * np.fmax(best, level)
            weight = np.where(best < level, 1.0, 1 - share)
            noise = weight**2 * self.noise_before[:, starts] + self._variance(low, length)
            above = low - (best - fall) > EXCLUDED * np.sqrt(noise)
            unknown = np.isnan(best)
            # A fall from the first steps is seen soon after them.
            unknown[: len(FIRST)] |= starts > 2 * WINDOW
            if not (above | unknown).all():
                return False
        return True

    def onset(self, best: float) -> int:
        """Return the index of the step from which on the reward is lost for good."""
        import numpy as np

        means = (self.sums[WINDOW:] - self.sums[:-WINDOW]) / WINDOW
        kept = np.flatnonzero(means > LOST * best)
        if not len(kept):
            return int((self.rewards <= LOST * best).argmax())
        # The last stretch above the limit still has this many steps of before.
        return int(kept[-1] + math.ceil(WINDOW * LOST))

    def _later(
        self, lengths: Sequence[int]
    ) -> Iterator[tuple[int, "NDArray[Any]", "NDArray[Any]", float]]:
        """Yield length, starts [P], means [P] and number of the later stretches."""
        import numpy as np

        steps = len(self.rewards)
        for length in (*LAST, *lengths):
            starts = np.arange(steps - length if length in LAST else 0, steps - length + 1)
            low = (self.sums[starts + length] - self.sums[starts]) / length
            yield length, starts, low, 1.0 if length in LAST else steps / length

    def _variance(self, level: "NDArray[Any]", length: Any) -> "NDArray[Any]":
        """Return the variances of means over `length` steps at these levels of the reward."""
        drawn: NDArray[Any] = level * (1 - level) / self.num_rollouts
        c = self.correlation
        # The sum of (1 - k / length) c^k over k = 1 ... length - 1.
        later = c / (1 - c) - c * (1 - c**length) / (length * (1 - c) ** 2)
        variance: NDArray[Any] = drawn.clip(max(self.variance, 1e-12)) * (1 + 2 * later) / length
        return variance


def _noise(rewards: "NDArray[Any]") -> tuple[float, float]:
    """Return the variance of one step's reward, and the correlation of consecutive steps.

    Differences over one and two steps, cut so that a fall does not count, know nothing of what is
    learnt slowly. The correlation follows from both. It is counted only as far as it exceeds 1.5
    standard errors, and then half as much again: a short run tells it badly.
    """
    import numpy as np

    one, two = np.diff(rewards), rewards[2:] - rewards[:-2]
    cut = 8 * np.median(np.abs(one))
    size, over_two = (np.mean(np.abs(x).clip(0, cut or np.inf) ** 2) for x in (one, two))
    ratio = over_two / size if cut else 1.0
    correlation = float(np.clip(1.5 * (ratio - 1 - 1.5 / math.sqrt(len(rewards))), 0, 0.9))
    return float(size) / 2 / (1 - correlation), correlation
