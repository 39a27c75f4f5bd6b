"""Predict the β at which the KL term alone makes training unstable: linear stability of one mode.

Let x be the distance from the point at which the KL's force is zero, along the direction that an
update moves most. One update changes x by a = η √B κ β |c| / √(σ² + β² v):

    η   learning rate; AdamW divides a gradient by its own root mean square
    B   rollouts of an update: they lower that root mean square
    κ   largest eigenvalue of the scaled Fisher matrix of a response (Curvature.largest)
    c   the term's share of the true KL's pull, from the laboratory
    σ   deviation of an advantage (Curvature.advantage_deviation)
    v   1 for k1 in the loss, whose charge on the score is constant; else 0

A KL in the reward gives the force of the rollout policy, which is L updates old. k1 in the loss
pushes away from the rollout policy; on-policy it pushes nowhere. docs/decisions/083 lists the
assumptions.
"""

from functools import cache
from math import sqrt

from orchestrator import plugins
from orchestrator.settings import Settings
from orchestrator.spec.rehearse import verdict_on

AVERAGE = 0.9
"""AdamW's decay of the mean of gradients, if the cell sets none."""
PUSHES_AWAY = "sampled_k1"
"""The laboratory's name of the objective of k1 in the loss, off policy (kl/catalogue.py)."""
SMALLEST_PULL = 1e-6
FORMULA = (
    "a = η √B κ β |c| / √(σ² + β² v), where one update changes the distance from the fixed point "
    "by a: η learning rate, B rollouts of an update, κ the largest eigenvalue of the scaled Fisher "
    "matrix of a response at the base policy, c the term's share of the true KL's pull, σ the "
    "deviation of an advantage, v 1 for k1 in the loss and else 0. Bound: for k1 in the loss a L < "
    "1 with L the staleness in updates; for a pull, no growing root of (z - 1)(z - 0.9) z^L + 0.1 "
    "a z, with L = 0 where it is in the loss only."
)
ASSUMES = (
    "It assumes one direction, small distances, constant noise, no task force and no clip; it says "
    "where a disturbance begins to grow, not how soon that is seen, and nothing of instability "
    "from noise alone, from heavy tails or from the task (docs/decisions/083)."
)


def boundary(settings: Settings) -> float | None:
    """Return the β above which a cell's KL term alone is linearly unstable.

    Return None if it is stable at every β, if the cell has no KL term, or if the curvature at its
    initial policy is not known.
    """
    kl = settings.kl
    known = plugins.load(settings.backend.name).curvature(settings)
    if known is None or kl.placement is None:
        return None
    rollouts = settings.batch.num_prompts * settings.rollout.group_size
    rollouts //= settings.batch.num_minibatches
    gain = settings.optimizer.learning_rate * sqrt(rollouts) * known.largest
    lag, spread = mean_lag(settings), known.advantage_deviation
    verdict = verdict_on(settings)
    half = 0.5 if kl.placement == "reward_and_loss" else 1.0
    if any(key == PUSHES_AWAY for _, key in verdict.terms):
        strength = gain * lag
        return spread / sqrt(strength**2 - 1) / half if strength > 1 else None
    if abs(verdict.pull) < SMALLEST_PULL:
        return None
    late = 0.0 if kl.placement == "loss" else lag
    return largest_step(late, settings.optimizer.beta1) * spread / (gain * abs(verdict.pull))


def mean_lag(settings: Settings) -> float:
    """Return the mean age of the rollout policy, in updates: staleness and updates of a batch."""
    return settings.max_staleness_steps + (settings.batch.num_minibatches - 1) / 2


def largest_step(lag: float, average: float = AVERAGE) -> float:
    """Return the largest stable `a` for a force that is `lag` updates old.

    Interpolate the inverse between whole lags.
    """
    below = int(lag)
    one = _largest_step(below, average)
    if lag == below:
        return one
    share = lag - below
    return 1 / ((1 - share) / one + share / _largest_step(below + 1, average))


@cache
def _largest_step(lag: int, average: float) -> float:
    """Return the `a` at which a root of the characteristic polynomial leaves the unit circle."""
    import numpy as np

    def grows(a: float) -> bool:
        polynomial = np.zeros(lag + 3)
        polynomial[:3] = 1, -1 - average, average  # (z - 1)(z - average) z^lag
        polynomial[-2] += (1 - average) * a
        return bool(np.abs(np.roots(polynomial)).max() > 1 + 1e-9)

    low, high = 0.0, 2 * (1 + average) / (1 - average) + 1
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if grows(middle) else (middle, high)
    return low
