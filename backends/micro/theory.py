"""The optimum of KL-regularised RL in closed form, for rewards of 0 and 1.

The maximiser of E[R] - beta KL(pi || pi_ref) is pi* proportional to pi_ref exp(R / beta). Where a
prompt has one right answer, of chance p_x under pi_ref, its chance under pi* is
sigmoid(logit p_x + 1 / beta): the accuracy to which every configuration with an unbiased gradient
of the sequence-level KL must converge.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from backends.micro.shipped import manifest, policy_of, skill_of
from backends.micro.version import dialect_of
from orchestrator.settings import Settings

UNBIASED = frozenset({"k1.reward", "rho_k1.reward", "k1+.reward", "k1.both", "k3.both"})
"""KL terms whose expected on-policy gradient is that of the sequence-level reverse KL (paper §3;
orchestrator/kl). In the reward only the value of a `+` form is used, which is that of the
plain one, and on-policy the ratio of a rho form is 1."""


class Prediction(NamedTuple):
    """What training converges to, over the in-loop evaluation's held-out problems."""

    accuracy: float
    kl_reverse: float
    """KL(pi* || pi_ref), nats per sequence."""


def predicted(settings: Settings) -> Prediction | None:
    """The optimum of an embedded cell; None where its expected gradient is not the objective's."""
    policy, skill = policy_of(settings.model.path), skill_of(settings.data.path)
    if policy is None or skill is None or not has_closed_form(settings):
        return None
    return optimum(manifest(policy).chances[skill], settings.kl.beta)


def has_closed_form(settings: Settings) -> bool:
    """Whether training climbs E[R] - beta KL to a fixed reference policy, on-policy.

    Group normalisation rescales the reward's half of the gradient only: it is let through where
    the reward carries the whole KL, inside the group's baseline. Weight decay's small pull is left
    out, and so is a clamp, which binds on no token that is sampled more than rarely.
    """
    kl, rollout, dialect = settings.kl, settings.rollout, dialect_of(settings)
    inside = kl.placement == "reward" and dialect.kl_reward == "inside"
    whole = inside or settings.advantage.estimator in ("rloo", "reinforce")
    whole = whole and dialect.kl_reward != "token"
    if kl.placement == "reward_and_loss":
        whole = whole and dialect.kl_loss_mean == "as_policy"
    return (
        kl.label in UNBIASED
        and kl.beta > 0
        and kl.reset_reference_every_steps is None
        and whole
        and settings.max_staleness_steps == 0
        and settings.batch.num_minibatches == 1
        and rollout.temperature == 1.0
        and rollout.top_p == 1.0
    )


def optimum(chances: Sequence[float], beta: float) -> Prediction:
    """The optimum for prompts whose right answers have these chances under pi_ref."""
    p = np.clip(np.asarray(chances, dtype=np.float64), 1e-12, 1 - 1e-12)
    log_odds = np.log(p) - np.log1p(-p) + 1 / beta
    wrong = 1 / (1 + np.exp(np.minimum(log_odds, 700.0)))
    right = 1 - wrong
    surprise = np.where(wrong > 0, wrong * np.log(np.maximum(wrong, 1e-300) / (1 - p)), 0.0)
    return Prediction(float(right.mean()), float((right * np.log(right / p) + surprise).mean()))
