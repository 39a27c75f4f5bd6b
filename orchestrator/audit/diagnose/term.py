"""What a log says of the KL term in the objective: where it is, its weight, whether it is k1.

A library logs the KL before beta. The reward before and after the KL, or the loss with and without
it, tell the rest.
"""

from dataclasses import dataclass

import numpy as np

from orchestrator.audit.diagnose.trace import Series, Trace
from orchestrator.library.logged import Place

KL, TERM = "train/kl_reference", "train/kl_term"
_FEWEST = 5
_SPREAD = 0.2
"""Spread of a weight over the steps, beside its median, up to which the log tells it."""


@dataclass(frozen=True)
class LoggedTerm:
    """The KL term of a log. None: the log does not tell it."""

    place: Place | None = None
    beta: float | None = None
    is_k1: bool = False
    """Several estimates are below 0: k1, or a variant with its value."""


def term_of(trace: Trace) -> LoggedTerm:
    """Return what a log says of its KL term."""
    place = trace.place
    term, moved = trace.get(TERM), trace.get(KL)
    values = moved if term is None else term
    if values is None or not np.nanmax(np.abs(values)) > 0:
        return LoggedTerm(place)
    is_k1 = _is_signed(values)
    reward, shaped = trace.get("train/reward_mean"), trace.get("train/shaped_reward_mean")
    if place != "loss" and reward is not None and shaped is not None:
        penalty = reward - shaped
        if np.nanmax(np.abs(penalty)) > 1e-6 * np.nanmax(np.abs(values)):
            return LoggedTerm("reward", _weight(penalty, moved), is_k1)
        place = "loss"
    beta = None
    if place != "reward" and term is not None:
        loss, policy = trace.get("train/loss"), trace.get("train/policy_loss")
        if loss is not None and (policy is not None or trace.steps_a_batch == 1):
            beta = _weight(loss if policy is None else loss - policy, term)
        place = place if beta is None else "loss"
    if beta is None and (logged := trace.get("train/beta")) is not None:
        beta = float(np.nanmedian(logged))
    return LoggedTerm(place, beta, is_k1)


def _is_signed(values: Series) -> bool:
    """Return whether estimates are below 0 in several steps, by more than rounding."""
    finite = values[np.isfinite(values)]
    return int(np.sum(finite < -1e-3 * np.max(np.abs(finite)))) >= 2


def _weight(total: Series, kl: Series | None) -> float | None:
    """Return the weight that makes one series of another; None if no one weight does."""
    if kl is None:
        return None
    large = np.isfinite(total) & np.isfinite(kl)
    if large.any():
        large &= np.abs(kl) > 0.1 * np.median(np.abs(kl[large]))
        large &= np.abs(kl) > 0
    if large.sum() < _FEWEST:
        return None
    weights = total[large] / kl[large]
    weight = float(np.median(weights))
    spread = float(np.median(np.abs(weights - weight)))
    return weight if weight > 0 and spread <= _SPREAD * weight else None
