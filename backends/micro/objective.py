"""Advantages and the loss: how rewards and the KL term become one gradient.

Shapes: P prompts, G rollouts of each, T response tokens. Masked tokens carry 0 everywhere.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from orchestrator.semantics.estimators import token_kl
from orchestrator.settings import AdvantageEstimator, Kl, Loss


class Experience(NamedTuple):
    """Rollouts with all the loss needs to know of them."""

    prompts: Tensor
    """[P, S]"""
    tokens: Tensor
    """[P, G, T]"""
    mask: Tensor
    """[P, G, T]"""
    logp_rollout: Tensor
    """[P, G, T]"""
    logp_ref: Tensor
    """[P, G, T]"""
    reward: Tensor
    """[P, G], of the task, before any KL penalty."""
    penalty: Tensor
    """[P, G], the KL estimate in the reward, summed over a response; before beta."""
    advantage: Tensor
    """[P, G]"""

    def minibatches(self, count: int) -> list["Experience"]:
        """Equal parts by prompt, in order."""
        return [Experience(*part) for part in zip(*(x.chunk(count) for x in self), strict=True)]


class Objective(NamedTuple):
    """The loss of a minibatch and what it is made of."""

    loss: Tensor
    policy_loss: Tensor
    kl_term: Tensor
    """Mean over responses of the summed KL estimate in the loss, before beta; 0 without one."""
    ratio: Tensor
    """[P, G, T], policy over rollout policy."""
    clipped: Tensor
    """[P, G, T] bool, tokens whose gradient the clip has stopped."""


def in_reward(kl: Kl) -> bool:
    """Whether the reward carries the KL term. With beta 0 there is no KL term anywhere."""
    return kl.beta > 0 and kl.placement in ("reward", "reward_and_loss")


def in_loss(kl: Kl) -> bool:
    return kl.beta > 0 and kl.placement in ("loss", "reward_and_loss")


def penalty(kl: Kl, logp_rollout: Tensor, logp_ref: Tensor, mask: Tensor) -> Tensor:
    """[P, G], the KL estimate that the reward loses, of the rollout policy; summed over tokens."""
    if not in_reward(kl):
        return torch.zeros_like(mask[..., 0])
    per_token: Tensor = token_kl(kl.estimator, logp_rollout, logp_ref, logp_rollout)
    return (per_token * mask).sum(-1)


def advantages(estimator: AdvantageEstimator, reward: Tensor) -> Tensor:
    """[P, G] from shaped rewards [P, G]. Each row is a group.

    grpo divides by the unbiased standard deviation plus 1e-6, as verl and TRL do.
    """
    if estimator == "reinforce":
        return reward
    size = reward.shape[-1]
    centred = reward - reward.mean(-1, keepdim=True)
    if estimator == "rloo":
        return centred * (size / (size - 1))
    if estimator == "grpo":
        return centred / (reward.std(-1, keepdim=True) + 1e-6)
    return centred


def objective(loss: Loss, kl: Kl, logp: Tensor, batch: Experience) -> Objective:
    """The loss of a minibatch, differentiable in logp [P, G, T]."""
    surrogate, ratio, clipped = policy_loss(
        loss, logp, batch.logp_rollout, batch.advantage[..., None]
    )
    policy = aggregate(loss, surrogate, batch.mask)
    if not in_loss(kl):
        return Objective(policy, policy, policy.new_zeros(()), ratio, clipped)
    per_token = token_kl(kl.estimator, logp, batch.logp_ref, batch.logp_rollout) * batch.mask
    total = policy + kl.beta * aggregate(loss, per_token, batch.mask)
    return Objective(total, policy, per_token.sum(-1).mean(), ratio, clipped)


def policy_loss(
    loss: Loss, logp: Tensor, logp_rollout: Tensor, advantage: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Per token: the surrogate to minimise, the importance ratio, and whether it was clipped.

    Schulman et al. 2017; dual clip of Ye et al. 2020 for negative advantages.
    """
    ratio = (logp - logp_rollout).exp()
    plain = -advantage * ratio
    if loss.clip is None:
        return plain, ratio, torch.zeros_like(ratio, dtype=torch.bool)
    bounded = -advantage * ratio.clamp(1 - loss.clip.low, 1 + loss.clip.high)
    surrogate = torch.maximum(plain, bounded)
    clipped = bounded > plain
    if loss.clip.dual is not None:
        ceiling = -advantage * loss.clip.dual
        over = (advantage < 0) & (surrogate > ceiling)
        surrogate, clipped = torch.where(over, ceiling, surrogate), clipped | over
    return surrogate, ratio, clipped


def aggregate(loss: Loss, per_token: Tensor, mask: Tensor) -> Tensor:
    """One number from [P, G, T]; see Loss.aggregation."""
    masked = per_token * mask
    if loss.aggregation == "token_mean":
        return masked.sum() / mask.sum()
    if loss.aggregation == "sequence_mean":
        return (masked.sum(-1) / mask.sum(-1)).mean()
    if loss.constant_tokens is None:
        raise TypeError("aggregation 'constant' without constant_tokens passed the settings")
    return masked.sum(-1).mean() / loss.constant_tokens
