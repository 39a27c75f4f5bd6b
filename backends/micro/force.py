"""How hard the KL really pulls: the beta that would exert the same force under plain semantics.

Nominal is the objective E[R] - beta KL, in which a token's KL is weighed against a token's
advantage by beta and nothing else. What changes that exchange: another normaliser for the KL of the
loss than for the policy loss, a group's standard deviation that divides the one and not the other,
a baseline that holds part of the reward back, a clamp that stops some tokens.
"""

import torch
from torch import Tensor

from backends.micro.objective import Experience, aggregate, clamp_of, in_loss, in_reward, of_the_kl
from orchestrator.estimators import entry
from orchestrator.kl.estimators import Clamp, clamped_value
from orchestrator.kl.library_semantics import Dialect
from orchestrator.settings import AdvantageEstimator, Settings


@torch.no_grad()
def beta_effective(
    settings: Settings, dialect: Dialect, logp: Tensor, batch: Experience
) -> float | None:
    """Of a minibatch, averaged over response tokens; None without a KL term.

    With the KL in both places, the mean of both.
    """
    kl, mask = settings.kl, batch.mask
    if kl.beta == 0:
        return None
    form, clamp, x = entry(kl.estimator), clamp_of(kl, dialect), logp - batch.logp_ref
    exchange = _reward_scale(settings.advantage.estimator, batch.reward)
    found = []
    if in_loss(kl):
        policy = _weights(settings, dialect, mask, of_kl=False)
        weights = _weights(settings, dialect, mask, of_kl=True)
        relative = torch.where(mask > 0, weights / policy.clamp_min(1e-30), 0.0)
        if not form.is_straight_through:
            relative = relative * _free(x, form.base, clamp)
        found.append((relative * mask).sum() / mask.sum() / exchange)
    if in_reward(kl):
        share = _kept(x, form.base, clamp, mask)
        found.append(share if dialect.kl_reward == "inside" else share / exchange)
    return kl.beta * torch.stack(found).mean().item()


def _reward_scale(estimator: AdvantageEstimator, reward: Tensor) -> Tensor:
    """What a group's advantages are of the rewards' differences: 1 for rloo, (G - 1) / G for a
    baseline that contains the rollout itself, over the standard deviation for grpo."""
    size = reward.shape[-1]
    if estimator in ("rloo", "reinforce"):
        return reward.new_ones(())
    inside = (size - 1) / size
    if estimator == "dr_grpo":
        return reward.new_tensor(inside)
    spread = reward.std(-1)
    known = spread[spread > 0]
    return inside / known.mean() if len(known) else reward.new_tensor(inside)


def _weights(settings: Settings, dialect: Dialect, mask: Tensor, *, of_kl: bool) -> Tensor:
    """[P, G, T], what a token's term is multiplied by on its way into the loss."""
    loss = of_the_kl(settings.loss, dialect) if of_kl else settings.loss
    with torch.enable_grad():
        ones = torch.ones_like(mask).requires_grad_()
        (found,) = torch.autograd.grad(aggregate(loss, ones, mask, dialect), ones)
    return found


def _free(x: Tensor, plain: str, clamp: Clamp) -> Tensor:
    """1 where neither the log-ratio nor the estimate is beyond its bound: a gradient passes."""
    free = torch.ones_like(x, dtype=torch.bool)
    if clamp.log_ratio is not None:
        free &= x.abs() <= clamp.log_ratio
    if clamp.value is not None:
        free &= clamped_value(plain, x).abs() <= clamp.value
    return free.to(x.dtype)


def _kept(x: Tensor, plain: str, clamp: Clamp, mask: Tensor) -> Tensor:
    """How much of the summed size of the estimates their bounds leave."""
    whole = (clamped_value(plain, x).abs() * mask).sum()
    held = (clamped_value(plain, x, clamp).abs() * mask).sum()
    return held / whole if whole > 0 else torch.ones_like(whole)
