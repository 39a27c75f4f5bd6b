"""Compute advantages and the loss: turn rewards and the KL term into one gradient.

A `Dialect` parameter has the differences of a library. `PLAIN` is this trainer's own dialect.
Shapes: P prompts, G rollouts per prompt, T response tokens. Masked tokens are 0 everywhere.
"""

from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from backends.micro.rollout import rows_of, tree
from orchestrator.estimators import Credit, entry
from orchestrator.kl.estimators import (
    UNCLAMPED,
    Clamp,
    token_kl,
    vocabulary_kl,
    vocabulary_slope,
)
from orchestrator.kl.library_semantics import (
    PLAIN,
    Dialect,
    has_kl_of_the_response,
    in_loss,
    in_reward,
)
from orchestrator.losses.table import DEFAULT, Bounds, Tokens, policy_loss_entry
from orchestrator.settings import AdvantageEstimator, Corrected, Kl, Loss


class Experience(NamedTuple):
    """Rollouts, with everything that the loss needs from them."""

    prompts: Tensor
    """[P, S]"""
    tokens: Tensor
    """[P, G, T]"""
    mask: Tensor
    """[P, G, T]"""
    logp_old: Tensor
    """[P, G, T], by the policy in the denominator of ratios (Dialect.ratio_to). In the plain
    dialect that is the rollout policy."""
    logp_ref: Tensor
    """[P, G, T]"""
    reward: Tensor
    """[P, G], of the task, before any KL penalty."""
    penalty: Tensor
    """[P, G], the KL estimate in the reward, summed over a response; before beta."""
    advantage: Tensor
    """[P, G, 1], or [P, G, T] where the tokens of a response have advantages of their own."""
    logps_ref: Tensor | None = None
    """[P, packed positions, V], of the whole vocabulary; None if no estimator needs it."""
    logp_engine: Tensor | None = None
    """[P, G, T], by the engine that sampled, or None if unknown."""
    weight: Tensor | None = None
    """[P, G, T] or [P, G, 1], the correction of the engine's mismatch, or None without one."""
    batch_tokens: Tensor | None = None
    """[], of a minibatch: the mean number of response tokens of its rollout batch's minibatches."""

    def minibatches(self, count: int) -> list["Experience"]:
        """Return `count` parts with equally many prompts, in order."""
        whole, tokens = self._replace(batch_tokens=None), self.mask.sum() / count
        if count == 1:
            return [whole._replace(batch_tokens=tokens)]
        parts = ([None] * count if x is None else x.chunk(count) for x in whole)
        return [Experience(*p)._replace(batch_tokens=tokens) for p in zip(*parts, strict=True)]


class Objective(NamedTuple):
    """The loss of a minibatch, and its parts."""

    loss: Tensor
    policy_loss: Tensor
    kl_term: Tensor
    """Mean over responses of the summed KL estimate in the loss, before beta; 0 without one."""
    ratio: Tensor
    """[P, G, T], the policy's probability over that in logp_old."""
    clipped: Tensor
    """[P, G, T] bool, True for tokens whose gradient the clip sets to 0."""


def clamp_of(kl: Kl, dialect: Dialect) -> Clamp:
    """Return the dialect's bounds on this cell's KL estimates."""
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
    name = entry(kl.estimator).in_reward or kl.estimator
    rollout = logp if logp_rollout is None else logp_rollout
    estimate: Tensor = token_kl(name, logp, logp_ref, rollout, clamp=clamp_of(kl, dialect))
    return estimate * mask


def state_kl(estimator: str, logps: Tensor, logps_ref: Tensor, shape: torch.Size) -> Tensor:
    """Return the KL of the state of each response token, of `shape` [P, G, T].

    `logps`, `logps_ref`: [P, packed positions, V], of the whole vocabulary.
    """
    return rows_of(vocabulary_kl(estimator, logps, logps_ref), shape)


def state_slope(estimator: str, logps: Tensor, logps_ref: Tensor, slope: Tensor) -> Tensor:
    """Return the slope in `logps` of a loss with this slope [P, G, T] in `state_kl`."""
    _, index = tree(slope.shape[1], slope.shape[2], slope.device)
    of_rows = logps.new_zeros(logps.shape[:2])
    of_rows.scatter_add_(1, index.expand(len(slope), -1), slope.flatten(1))
    inner: Tensor = vocabulary_slope(estimator, logps, logps_ref)
    return logps.exp() * inner * of_rows[..., None]


def shaped_advantages(
    estimator: AdvantageEstimator,
    reward: Tensor,
    beta: float,
    lost: Tensor,
    dialect: Dialect = PLAIN,
    credit: Credit = "sequence",
) -> Tensor:
    """Return advantages, [P, G, 1] or [P, G, T], with the KL penalty in them.

    `reward`: task rewards [P, G]. `lost`: the KL of each token [P, G, T], before beta.
    Dialect.kl_reward decides where the penalty enters. `credit`: the tokens whose KL the estimator
    charges to a token; each position then has its own baseline. For the whole sequence the dialect
    decides.
    """
    if dialect.kl_reward == "inside" and credit == "sequence":
        shaped = reward - beta * lost.sum(-1)
        return advantages(estimator, shaped, dialect.std_epsilon)[..., None]
    if dialect.kl_reward == "inside":
        shaped = reward[..., None] - beta * _charged(lost, credit)
        # `advantages` takes the last axis as the group: here that is G and not T.
        turned = shaped.transpose(-1, -2)
        return advantages(estimator, turned, dialect.std_epsilon).transpose(-1, -2)
    gained = advantages(estimator, reward, dialect.std_epsilon)[..., None]
    of_dialect: dict[str, Credit] = {"outside": "sequence", "to_go": "to_go", "token": "token"}
    return gained - beta * _charged(
        lost, of_dialect[dialect.kl_reward] if credit == "sequence" else credit
    )


def _charged(lost: Tensor, credit: Credit) -> Tensor:
    """Return the KL charged to each token, [P, G, T], or [P, G, 1] if equal for all tokens."""
    if credit == "sequence":
        return lost.sum(-1, keepdim=True)
    if credit == "token":
        return lost
    # The sum from each token to the end of the response.
    to_go = lost.flip(-1).cumsum(-1).flip(-1)
    return to_go if credit == "to_go" else to_go - lost


def advantages(
    estimator: AdvantageEstimator, reward: Tensor, epsilon: float = PLAIN.std_epsilon
) -> Tensor:
    """Return advantages [P, G] from rewards [P, G]. Each row is a group.

    grpo divides by the unbiased standard deviation plus epsilon, as verl does (TRL's is 1e-4).
    """
    if estimator == "reinforce":
        return reward
    size = reward.shape[-1]
    centred = reward - reward.mean(-1, keepdim=True)
    if estimator == "rloo":
        # A reward less the mean of the others: G / (G - 1) times the reward less the mean of all.
        return centred * (size / (size - 1))
    if estimator == "grpo":
        return centred / (reward.std(-1, keepdim=True) + epsilon)
    return centred


def objective(
    loss: Loss,
    kl: Kl,
    logp: Tensor,
    batch: Experience,
    dialect: Dialect = PLAIN,
    state_kls: Tensor | None = None,
) -> Objective:
    """Return the loss of a minibatch, differentiable in `logp` [P, G, T].

    `state_kls`: the KL of each token's state (`state_kl`), for an estimator over the vocabulary.
    """
    if dialect.ratio_level == "sequence_if_kl_reward" and has_kl_of_the_response(kl):
        loss = loss.but(ratio_level="sequence")
    surrogate, ratio, clipped = policy_loss(
        loss,
        logp,
        batch.logp_old,
        batch.advantage,
        dialect.ratio_bound,
        batch.mask,
    )
    if batch.weight is not None and _corrects(loss, "policy_loss"):
        surrogate = surrogate * batch.weight
    policy = aggregate(loss, surrogate, batch.mask, dialect, batch.batch_tokens)
    if not in_loss(kl):
        return Objective(policy, policy, torch.zeros_like(policy), ratio, clipped)
    if state_kls is None:
        state_kls = kl_loss(kl, logp, batch.logp_ref, batch.logp_old, dialect, batch.mask)
    if batch.weight is not None and _corrects(loss, "kl"):
        state_kls = state_kls * batch.weight
    per_token = state_kls * batch.mask
    of_kl = of_the_kl(loss, dialect), per_token, batch.mask, dialect, batch.batch_tokens
    total = policy + kl.beta * aggregate(*of_kl)
    return Objective(total, policy, mean_over_responses(per_token.sum(-1)), ratio, clipped)


def _corrects(loss: Loss, part: Corrected) -> bool:
    """Return True if the cell's correction multiplies this part of the loss."""
    return loss.correction is not None and loss.correction.applies_to in (part, "both")


def kl_loss(
    kl: Kl,
    logp: Tensor,
    logp_ref: Tensor,
    logp_old: Tensor,
    dialect: Dialect,
    mask: Tensor | None,
) -> Tensor:
    """Return [P, G, T], the KL estimate of each token in the loss, differentiable in `logp`.

    `mask` [P, G, T]: the tokens of a response, for a ratio of the whole sequence.
    """
    clamp, form = clamp_of(kl, dialect), entry(kl.estimator)
    bound = dialect.kl_ratio_max
    if bound is None or form.is_plain or kl.ratio_level != "token":
        given = kl.estimator, logp, logp_ref, logp_old
        estimate: Tensor = token_kl(*given, ratio=kl.ratio_level, mask=mask, clamp=clamp)
        return estimate
    value = token_kl(form.base, logp, logp_ref, clamp=clamp).detach()
    weight = (logp - logp_old).exp().clamp(max=bound).detach()
    # The value is the estimate. The gradient is w x, that of k2 with a weight that is bounded and
    # detached.
    slope = weight * (logp - logp_ref).square() / 2
    through: Tensor = value + (slope - slope.detach())
    return through


def policy_loss(
    loss: Loss,
    logp: Tensor,
    logp_old: Tensor,
    advantage: Tensor,
    bound: float | None = None,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return per token: the surrogate to minimise, the importance ratio, True if clipped.

    Source: Schulman et al. 2017; dual clip for negative advantages, Ye et al. 2020. `bound`: limit
    the log-ratio to [-bound, bound] before its exponential. `mask` [P, G, T]: the tokens of a
    response, needed if the policy loss is another than ppo, or
    loss.ratio_level gives them one ratio. That is the product of their ratios,
    whose surrogate is spread evenly over the tokens (Ahmadian et al. 2024), or the geometric mean,
    which each token has (Zheng et al. 2025, GSPO).
    """
    if loss.policy != DEFAULT and mask is not None:
        return _loss_of_table(loss, Tokens(logp, logp_old, advantage, mask, bounds_of(loss)))
    if loss.ratio_level != "token" and mask is not None:
        return _sequence_loss(loss, logp, logp_old, advantage, bound, mask)
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


def bounds_of(loss: Loss) -> Bounds:
    """Return the bounds of a cell's policy loss."""
    if loss.clip is None:
        return Bounds()
    return Bounds(loss.clip.low, loss.clip.high, loss.clip.dual or inf)


def _loss_of_table(loss: Loss, tokens: Tokens) -> tuple[Tensor, Tensor, Tensor]:
    """Return policy_loss of an entry of the table: its value, with its slope as the gradient."""
    logp = tokens.logp
    value, slope = policy_loss_entry(loss.policy).compute(tokens._replace(logp=logp.detach()))
    surrogate = value + slope * (logp - logp.detach())
    return surrogate, (logp - tokens.logp_old).exp(), (slope == 0) & (tokens.advantage != 0)


def _sequence_loss(
    loss: Loss,
    logp: Tensor,
    logp_old: Tensor,
    advantage: Tensor,
    bound: float | None,
    mask: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return policy_loss with one ratio for each response, [P, G, T].

    Advantages are [P, G, 1]. Token advantages [P, G, T] are multiplied by the response's ratio.
    """
    length, is_mean = mask.sum(-1, keepdim=True), loss.ratio_level == "sequence_mean"
    summed = ((logp - logp_old) * mask).sum(-1, keepdim=True)
    of_response = summed / length if is_mean else summed
    # `of_response` is a log-ratio already, so it is compared with 0.
    surrogate, ratio, clipped = policy_loss(
        loss, of_response, torch.zeros_like(summed), advantage, bound
    )
    share = surrogate if is_mean else surrogate / length
    return share.expand_as(logp), ratio.expand_as(logp), clipped.expand_as(logp)


def of_the_kl(loss: Loss, dialect: Dialect) -> Loss:
    """Return a Loss with the aggregation that the dialect uses for the KL in the loss."""
    if dialect.kl_loss_mean == "as_policy":
        return loss
    return loss.model_copy(update={"aggregation": dialect.kl_loss_mean, "constant_tokens": None})


def aggregate(
    loss: Loss,
    per_token: Tensor,
    mask: Tensor,
    dialect: Dialect = PLAIN,
    batch_tokens: Tensor | None = None,
) -> Tensor:
    """Return one number from values per token [P, G, T]; see Loss.aggregation.

    batch_tokens: see Experience. None: the rollout batch is one minibatch.
    """
    masked = per_token * mask
    if loss.aggregation == "sequence_mean":
        return mean_over_responses(masked.sum(-1) / mask.sum(-1))
    if loss.aggregation == "token_mean":
        if batch_tokens is not None and dialect.mean_over == "batch":
            return sum_over_tokens(masked) / batch_tokens
        if dialect.micro_batch is not None:
            parts = (
                torch.split(x.sum(-1).flatten(-2), dialect.micro_batch, -1) for x in (masked, mask)
            )
            means = [a.sum(-1) / b.sum(-1) for a, b in zip(*parts, strict=True)]
            return torch.stack(means, -1).mean(-1)
    if loss.aggregation == "token_mean" or dialect.constant_is_tokens:
        return sum_over_tokens(masked) / sum_over_tokens(mask)
    if loss.constant_tokens is None:
        raise TypeError("aggregation 'constant' without constant_tokens passed the settings")
    return mean_over_responses(masked.sum(-1)) / loss.constant_tokens


def sum_over_tokens(per_token: Tensor) -> Tensor:
    """Return the sum of values per token [P, G, T]."""
    return per_token.flatten(-3).sum(-1)


def mean_over_responses(per_response: Tensor) -> Tensor:
    """Return the mean of values per response [P, G]."""
    return per_response.flatten(-2).mean(-1)
