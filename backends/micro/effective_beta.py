"""Compute the effective beta: the beta that exerts the same force under plain semantics.

The nominal objective is E[R] - beta KL. In it, only beta weighs a token's KL against a token's
advantage. Four things change this weight: a normaliser for the KL in the loss that differs from
that of the policy loss, a group standard deviation that divides only one of the two, a baseline
that holds back part of the reward, and a clamp that cuts off the gradient of some tokens.
"""

import torch
from torch import Tensor

from backends.micro.objective import Experience, aggregate, clamp_of, of_the_kl
from orchestrator.estimators import entry
from orchestrator.kl.estimators import Clamp, clamped_value
from orchestrator.kl.library_semantics import Dialect, in_loss, in_reward
from orchestrator.settings import AdvantageEstimator, Settings


@torch.no_grad()
def beta_effective(
    settings: Settings, dialect: Dialect, logp: Tensor, batch: Experience
) -> float | None:
    """Return the mean effective beta of a minibatch's tokens; None without a KL term.

    If the KL is in both the reward and the loss, return the mean of both.
    """
    kl, mask = settings.kl, batch.mask
    if kl.beta == 0:
        return None
    form, clamp, x = entry(kl.estimator), clamp_of(kl, dialect), logp - batch.logp_ref
    exchange = _reward_scale(settings.advantage.estimator, batch.reward)
    betas = []
    if in_loss(kl):
        policy = _weights(settings, dialect, batch, of_kl=False)
        weights = _weights(settings, dialect, batch, of_kl=True)
        # Masked tokens have no weight: the bound keeps them from dividing 0 by 0.
        relative = torch.where(mask > 0, weights / policy.clamp_min(1e-30), 0.0)
        if not form.is_straight_through:
            relative = relative * _free(x, form.base, clamp)
        betas.append((relative * mask).sum() / mask.sum() / exchange)
    if in_reward(kl):
        share = _kept(x, form.base, clamp, mask)
        betas.append(share if dialect.kl_reward == "inside" else share / exchange)
    return kl.beta * torch.stack(betas).mean().item()


def _reward_scale(estimator: AdvantageEstimator, reward: Tensor) -> Tensor:
    """Return the factor between differences of rewards and differences of advantages in a group.

    It is 1 for rloo and reinforce. It is (G - 1) / G for a baseline that contains the rollout
    itself; grpo divides this by the standard deviation.
    """
    size = reward.shape[-1]
    if estimator in ("rloo", "reinforce"):
        return reward.new_ones(())
    inside = (size - 1) / size
    if estimator == "dr_grpo":
        return reward.new_tensor(inside)
    # Groups of equal rewards have no advantages, so they do not count.
    spread = reward.std(-1)
    known = spread[spread > 0]
    return inside / known.mean() if len(known) else reward.new_tensor(inside)


def _weights(settings: Settings, dialect: Dialect, batch: Experience, *, of_kl: bool) -> Tensor:
    """Return [P, G, T], the factor of each token's term in the aggregated loss."""
    loss = of_the_kl(settings.loss, dialect) if of_kl else settings.loss
    # `aggregate` is linear, so its gradient is the factor of each token.
    with torch.enable_grad():
        ones = torch.ones_like(batch.mask).requires_grad_()
        total = aggregate(loss, ones, batch.mask, dialect, batch.batch_tokens)
        (weights,) = torch.autograd.grad(total, ones)
    return weights


def _free(x: Tensor, plain: str, clamp: Clamp) -> Tensor:
    """Return 1 where the log-ratio and the estimate are within their bounds, else 0.

    A gradient passes only where the value is 1.
    """
    free = torch.ones_like(x, dtype=torch.bool)
    if clamp.log_ratio is not None:
        free &= x.abs() <= clamp.log_ratio
    if clamp.value is not None:
        free &= clamped_value(plain, x).abs() <= clamp.value
    return free.to(x.dtype)


def _kept(x: Tensor, plain: str, clamp: Clamp, mask: Tensor) -> Tensor:
    """Return the fraction of the summed absolute estimates that is left after the clamp."""
    whole = (clamped_value(plain, x).abs() * mask).sum()
    kept_force = (clamped_value(plain, x, clamp).abs() * mask).sum()
    return kept_force / whole if whole > 0 else torch.ones_like(whole)
