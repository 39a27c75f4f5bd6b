"""Compute advantages and the loss: turn rewards and the KL term into one gradient.

A `Dialect` parameter holds what a library does differently. `PLAIN` is this trainer's own dialect.
Shapes: P prompts, G rollouts per prompt, T response tokens. Masked tokens are 0 everywhere.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from orchestrator.estimators import entry
from orchestrator.kl.estimators import UNCLAMPED, Clamp, token_kl
from orchestrator.kl.library_semantics import PLAIN, Dialect
from orchestrator.settings import AdvantageEstimator, Kl, Loss


class Experience(NamedTuple):
    """Rollouts, with everything that the loss needs from them."""

    prompts: Tensor
    """[P, S]"""
    tokens: Tensor
    """[P, G, T]"""
    mask: Tensor
    """[P, G, T]"""
    logp_old: Tensor
    """[P, G, T], of the policy that ratios are to (Dialect.ratio_to): plainly, that sampled."""
    logp_ref: Tensor
    """[P, G, T]"""
    reward: Tensor
    """[P, G], of the task, before any KL penalty."""
    penalty: Tensor
    """[P, G], the KL estimate in the reward, summed over a response; before beta."""
    advantage: Tensor
    """[P, G, 1], or [P, G, T] where the tokens of a response have advantages of their own."""

    def minibatches(self, count: int) -> list["Experience"]:
        """Return `count` parts with equally many prompts, in order."""
        return [Experience(*part) for part in zip(*(x.chunk(count) for x in self), strict=True)]


class Objective(NamedTuple):
    """The loss of a minibatch, and its parts."""

    loss: Tensor
    policy_loss: Tensor
    kl_term: Tensor
    """Mean over responses of the summed KL estimate in the loss, before beta; 0 without one."""
    ratio: Tensor
    """[P, G, T], policy over the policy of logp_old."""
    clipped: Tensor
    """[P, G, T] bool, tokens whose gradient the clip has stopped."""


def in_reward(kl: Kl) -> bool:
    """Return True if the reward carries the KL term. With beta 0 there is no KL term."""
    return kl.beta > 0 and kl.placement in ("reward", "reward_and_loss")


def in_loss(kl: Kl) -> bool:
    return kl.beta > 0 and kl.placement in ("loss", "reward_and_loss")


def clamp_of(kl: Kl, dialect: Dialect) -> Clamp:
    """Return the bounds that the dialect puts on this cell's KL estimates."""
    return Clamp(*dialect.kl_clamp) if dialect.clamps(kl.estimator) else UNCLAMPED


def penalty(
    kl: Kl,
    logp: Tensor,
    logp_ref: Tensor,
    mask: Tensor,
    dialect: Dialect = PLAIN,
    logp_rollout: Tensor | None = None,
) -> Tensor:
    """Return [P, G, T], the KL estimate of each token that is subtracted from the reward.

    `logp`: log-probabilities under the policy whose KL is estimated. `logp_rollout`: those under
    the policy that sampled, for the ratio of the rho forms; None: use `logp`.
    """
    if not in_reward(kl):
        return torch.zeros_like(mask)
    rollout = logp if logp_rollout is None else logp_rollout
    estimate: Tensor = token_kl(kl.estimator, logp, logp_ref, rollout, clamp=clamp_of(kl, dialect))
    return estimate * mask


def shaped_advantages(
    estimator: AdvantageEstimator,
    reward: Tensor,
    beta: float,
    lost: Tensor,
    dialect: Dialect = PLAIN,
) -> Tensor:
    """Return advantages, [P, G, 1] or [P, G, T], with the KL penalty in them.

    `reward`: task rewards [P, G]. `lost`: the KL of each token [P, G, T], which beta multiplies.
    Dialect.kl_reward says where the penalty enters.
    """
    if dialect.kl_reward == "inside":
        shaped = reward - beta * lost.sum(-1)
        return advantages(estimator, shaped, dialect.std_epsilon)[..., None]
    gained = advantages(estimator, reward, dialect.std_epsilon)[..., None]
    if dialect.kl_reward == "outside":
        return gained - beta * lost.sum(-1, keepdim=True)
    if dialect.kl_reward == "to_go":
        return gained - beta * lost.flip(-1).cumsum(-1).flip(-1)
    return gained - beta * lost


def advantages(
    estimator: AdvantageEstimator, reward: Tensor, epsilon: float = PLAIN.std_epsilon
) -> Tensor:
    """Return advantages [P, G] from rewards [P, G]. Each row is a group.

    grpo divides by the unbiased standard deviation plus epsilon, as verl and TRL do.
    """
    if estimator == "reinforce":
        return reward
    size = reward.shape[-1]
    centred = reward - reward.mean(-1, keepdim=True)
    if estimator == "rloo":
        return centred * (size / (size - 1))
    if estimator == "grpo":
        return centred / (reward.std(-1, keepdim=True) + epsilon)
    return centred


def objective(
    loss: Loss, kl: Kl, logp: Tensor, batch: Experience, dialect: Dialect = PLAIN
) -> Objective:
    """Return the loss of a minibatch, differentiable in `logp` [P, G, T]."""
    surrogate, ratio, clipped = policy_loss(
        loss, logp, batch.logp_old, batch.advantage, dialect.ratio_bound
    )
    policy = aggregate(loss, surrogate, batch.mask, dialect)
    if not in_loss(kl):
        return Objective(policy, policy, policy.new_zeros(()), ratio, clipped)
    per_token = kl_loss(kl, logp, batch.logp_ref, batch.logp_old, dialect) * batch.mask
    total = policy + kl.beta * aggregate(of_the_kl(loss, dialect), per_token, batch.mask, dialect)
    return Objective(total, policy, per_token.sum(-1).mean(), ratio, clipped)


def kl_loss(
    kl: Kl, logp: Tensor, logp_ref: Tensor, logp_old: Tensor, dialect: Dialect = PLAIN
) -> Tensor:
    """Return [P, G, T], the KL estimate of each token in the loss, differentiable in `logp`."""
    clamp, form = clamp_of(kl, dialect), entry(kl.estimator)
    bound = dialect.kl_ratio_max
    if bound is None or (form.is_plain):
        estimate: Tensor = token_kl(kl.estimator, logp, logp_ref, logp_old, clamp=clamp)
        return estimate
    value = token_kl(form.base, logp, logp_ref, clamp=clamp).detach()
    weight = (logp - logp_old).exp().clamp(max=bound).detach()
    slope = weight * (logp - logp_ref).square() / 2
    through: Tensor = value + (slope - slope.detach())
    return through


def policy_loss(
    loss: Loss, logp: Tensor, logp_old: Tensor, advantage: Tensor, bound: float | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return per token: the surrogate to minimise, the importance ratio, True if clipped.

    Source: Schulman et al. 2017; dual clip for negative advantages, Ye et al. 2020. `bound`: limit
    the log-ratio to [-bound, bound] before its exponential.
    """
    log_ratio = logp - logp_old
    ratio = (log_ratio if bound is None else log_ratio.clamp(-bound, bound)).exp()
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


def of_the_kl(loss: Loss, dialect: Dialect) -> Loss:
    """Return a Loss with the aggregation that the dialect uses for the KL in the loss."""
    if dialect.kl_loss_mean == "as_policy":
        return loss
    return loss.model_copy(update={"aggregation": dialect.kl_loss_mean, "constant_tokens": None})


def aggregate(loss: Loss, per_token: Tensor, mask: Tensor, dialect: Dialect = PLAIN) -> Tensor:
    """Return one number from values per token [P, G, T]; see Loss.aggregation."""
    masked = per_token * mask
    if loss.aggregation == "sequence_mean":
        return (masked.sum(-1) / mask.sum(-1)).mean()
    if loss.aggregation == "token_mean" or dialect.constant_is_tokens:
        if dialect.micro_batch is None or loss.aggregation != "token_mean":
            return masked.sum() / mask.sum()
        parts = (torch.split(x.sum(-1).flatten(), dialect.micro_batch) for x in (masked, mask))
        return torch.stack([a.sum() / b.sum() for a, b in zip(*parts, strict=True)]).mean()
    if loss.constant_tokens is None:
        raise TypeError("aggregation 'constant' without constant_tokens passed the settings")
    return masked.sum(-1).mean() / loss.constant_tokens
