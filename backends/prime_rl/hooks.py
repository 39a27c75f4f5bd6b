"""Loss and advantages for Prime-RL, loaded by its documented `type = "custom"` hooks.

This file is copied beside each plan and imported in Prime-RL's own environment: it may import torch
and nothing of orch. Prime-RL calls `loss` once a sequence and divides the sum of the losses by the
response tokens of the trainer rank.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Outputs(NamedTuple):
    """What Prime-RL reads of a loss: a scalar, and tensors it averages and logs by name."""

    loss: Tensor
    metrics: dict[str, Tensor]


def loss(
    inputs: Any,
    *,
    estimator: str = "none",
    placement: str = "",
    beta: float = 0.0,
    clip_low: float | None = None,
    clip_high: float | None = None,
    clip_dual: float | None = None,
    advantage_scale: float = 1.0,
) -> Outputs:
    """Return the summed loss of one sequence: clipped policy gradient, and the KL where it is
    placed.

    `inputs`: Prime-RL's LossInputs, tensors [T] over prompt and response, of which only positions
    with `loss_mask` are read; `loss_weights`, where a release has them, weigh each token. In the
    reward the KL is the sum over the response at the current policy, with no gradient; in the loss
    it is differentiated. Raise ValueError without reference log-probabilities.
    """
    mask = inputs.loss_mask
    logp, logp_rollout = inputs.trainer_logprobs[mask], inputs.inference_logprobs[mask].detach()
    advantages = inputs.advantages[mask] * advantage_scale
    log_ratio = logp - logp_rollout
    metrics = {"mismatch_kl": _mean(log_ratio.exp() - 1 - log_ratio)}
    penalty = torch.zeros_like(logp)
    if estimator != "none":
        if getattr(inputs, "teacher_logprobs", None) is None:
            raise ValueError(
                f"estimator {estimator!r} needs reference log-probabilities and Prime-RL sent "
                "none; set deployment.num_teacher_gpus or orchestrator.teacher_model"
            )
        logp_ref = inputs.teacher_logprobs[mask].detach()
        kl = token_kl(estimator, logp, logp_ref, logp_rollout)
        metrics |= {"ref_kl_k1": _mean(logp - logp_ref), "ref_kl": _mean(kl)}
        if placement in ("reward", "reward_and_loss"):
            advantages = advantages - beta * kl.detach().sum()
        if placement in ("loss", "reward_and_loss"):
            penalty = beta * kl
    gain = surrogate(log_ratio.exp(), advantages, clip_low, clip_high, clip_dual)
    metrics["clip_fraction"] = _mean((gain != log_ratio.exp() * advantages).to(logp.dtype))
    total = penalty - gain
    if getattr(inputs, "loss_weights", None) is not None:
        total = total * inputs.loss_weights[mask]
    return Outputs(total.sum(), {name: x.detach() for name, x in metrics.items()})


def surrogate(
    ratio: Tensor, advantages: Tensor, low: float | None, high: float | None, dual: float | None
) -> Tensor:
    """Return PPO's clipped objective of each token [T], unclipped if no bounds are given."""
    plain = ratio * advantages
    if low is None or high is None:
        return plain
    clipped = torch.minimum(plain, ratio.clamp(1 - low, 1 + high) * advantages)
    if dual is None:
        return clipped
    return torch.where(advantages < 0, torch.maximum(clipped, dual * advantages), clipped)


def token_kl(estimator: str, logp: Tensor, logp_ref: Tensor, logp_rollout: Tensor) -> Tensor:
    """Return the KL estimate of each token [T], with the gradient that its name promises.

    `rho_x` is weighted by the token's importance ratio, `sg_rho_x` by the ratio without its
    gradient, and `x+` has the value of x and the gradient of k2.
    """
    x = logp - logp_ref
    plain = estimator.rstrip("+").rpartition("rho_")[2]
    value = {"k1": x, "k2": x * x / 2, "k3": (-x).expm1() + x, "abs": x.abs()}[plain]
    if estimator.endswith("+"):
        slope = x * x / 2
        return slope - slope.detach() + value.detach()
    if "rho_" not in estimator:
        return value
    weight = (logp - logp_rollout).exp()
    return (weight.detach() if estimator.startswith("sg_") else weight) * value


class Advantages(NamedTuple):
    """What Prime-RL reads of an advantage function: [prompts, group_size]."""

    advantages: Tensor


def leave_one_out(inputs: Any) -> Advantages:
    """Return each reward minus the mean reward of the other rollouts of its group (RLOO)."""
    rewards = inputs.rewards
    size = rewards.shape[1]
    # Less the mean of the others = less the mean of all, times n / (n - 1).
    return Advantages((rewards - rewards.mean(dim=1, keepdim=True)) * size / (size - 1))


def standardised(inputs: Any) -> Advantages:
    """Return each reward minus its group's mean, over the group's deviation + 1e-6 (GRPO)."""
    rewards = inputs.rewards
    centred = rewards - rewards.mean(dim=1, keepdim=True)
    return Advantages(centred / (rewards.std(dim=1, keepdim=True) + 1e-6))


def plain(inputs: Any) -> Advantages:
    """Return the reward itself as the advantage (REINFORCE)."""
    return Advantages(inputs.rewards)


def _mean(values: Tensor) -> Tensor:
    return values.sum() / max(values.numel(), 1)
