"""Compute the optimum of KL-regularised RL in closed form, for rewards of 0 and 1.

The maximiser of E[R] - beta KL(pi || pi_ref) is pi*, proportional to pi_ref exp(R / beta). Let a
prompt have one right answer, with probability p_x under pi_ref. Its probability under pi* is
sigmoid(logit p_x + 1 / beta). Every configuration with an unbiased gradient of the sequence-level
KL must converge to this accuracy.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from backends.micro.shipped import manifest, policy_of, skill_of
from backends.micro.version import dialect_of
from orchestrator.kl.table import stored_rows
from orchestrator.settings import Settings


class Prediction(NamedTuple):
    """The accuracy and KL that training converges to, on the problems of the in-loop evaluation."""

    accuracy: float
    kl_reverse: float
    """KL(pi* || pi_ref), nats per sequence."""


def predicted(settings: Settings) -> Prediction | None:
    """Return the optimum of an embedded cell, or None if the cell has no closed form."""
    policy, skill = policy_of(settings.model.path), skill_of(settings.data.path)
    if policy is None or skill is None or not has_closed_form(settings):
        return None
    return optimum(manifest(policy).chances[skill], settings.kl.beta)


def has_closed_form(settings: Settings) -> bool:
    """Return True if training climbs E[R] - beta KL on-policy, to a fixed reference policy.

    Group normalisation rescales only the reward's part of the gradient. So it is accepted only if
    the reward carries the whole KL, inside the group's baseline. Two effects are neglected: the
    small pull of weight decay, and a clamp, which binds only on rarely sampled tokens.
    """
    kl, rollout, dialect = settings.kl, settings.rollout, dialect_of(settings)
    inside = kl.placement == "reward" and dialect.kl_reward == "inside"
    whole = inside or settings.advantage.estimator in ("rloo", "reinforce")
    whole = whole and dialect.kl_reward != "token"
    if kl.placement == "reward_and_loss":
        whole = whole and dialect.kl_loss_mean == "as_policy"
    return (
        _is_unbiased(kl.label)
        and kl.beta > 0
        and kl.reset_reference_every_steps is None
        and kl.reference is None
        and kl.controller is None
        and whole
        and settings.max_staleness_steps == 0
        and settings.precision.rollout in (None, "fp32")
        and settings.loss.correction is None
        and settings.batch.num_minibatches == 1
        and rollout.temperature == 1.0
        and rollout.top_p == 1.0
    )


def _is_unbiased(label: str) -> bool:
    """Return True for a KL term whose on-policy gradient is that of the sequence's reverse KL."""
    rows = (row for row in stored_rows() if row.on_policy and row.ratio == "token")
    return any(row.label == label and row.is_unbiased for row in rows)


def optimum(chances: Sequence[float], beta: float) -> Prediction:
    """Return the optimum. `chances`: the probability of each prompt's right answer under pi_ref."""
    p = np.clip(np.asarray(chances, dtype=np.float64), 1e-12, 1 - 1e-12)
    log_odds = np.log(p) - np.log1p(-p) + 1 / beta
    # exp of more than 709 overflows.
    wrong = 1 / (1 + np.exp(np.minimum(log_odds, 700.0)))
    right = 1 - wrong
    # 0 log 0 is 0.
    surprise = np.where(wrong > 0, wrong * np.log(np.maximum(wrong, 1e-300) / (1 - p)), 0.0)
    return Prediction(float(right.mean()), float((right * np.log(right / p) + surprise).mean()))
