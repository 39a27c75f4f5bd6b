"""Judge by the training curves if training collapsed. A collapse is a result, not a failure.

Training collapsed if it lost a reward that it once had. The mean reward over the last WINDOW train
steps is then at most LOST times the best mean over any WINDOW steps, and that best mean was at
least HAD. The cause names what the policy turned into.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from orchestrator.records import Outcome

WINDOW = 10
LOST = 0.2
HAD = 0.1
NO_ENTROPY = 0.02
"""Nats a token; below it the policy always says the same."""
TOO_LONG = 0.95
"""Share of max_response_tokens that the mean response fills."""


class Moment(NamedTuple):
    """The values of one train step that the judge reads."""

    reward: float
    response_tokens: float
    entropy: float


def judge(trace: Sequence[Moment], max_response_tokens: int) -> Outcome:
    """Return the outcome of training. `trace` holds one moment per train step."""
    if len(trace) < 2 * WINDOW:
        return Outcome(kind="trained")
    rewards = _smooth([moment.reward for moment in trace])
    best = float(rewards.max())
    if best < HAD or rewards[-1] > LOST * best:
        return Outcome(kind="trained")
    kept = np.flatnonzero(rewards > LOST * best)[-1]
    return Outcome(
        kind="collapsed",
        cause=_cause(trace, max_response_tokens),
        step=int(kept) + 1 + WINDOW,
        detail=f"mean reward over {WINDOW} train steps fell from {best:.3f} to {rewards[-1]:.3f}",
    )


def diverged(step: int, what: str) -> Outcome:
    """Return the outcome of training in which `what` was not finite at train step `step`."""
    return Outcome(
        kind="collapsed",
        cause="nan",
        step=step,
        detail=f"{what} was not finite; training ended with the last policy whose loss was",
    )


def _cause(trace: Sequence[Moment], limit: int) -> Literal["length", "entropy", "reward"]:
    tokens = _smooth([moment.response_tokens for moment in trace])
    if tokens[-1] >= TOO_LONG * limit and tokens.min() < TOO_LONG * limit:
        return "length"
    if _smooth([moment.entropy for moment in trace])[-1] < NO_ENTROPY:
        return "entropy"
    return "reward"


def _smooth(values: Sequence[float]) -> np.ndarray:
    """Return the means over WINDOW consecutive values. Entry i ends at train step i + WINDOW."""
    return np.convolve(values, np.full(WINDOW, 1 / WINDOW), mode="valid")
