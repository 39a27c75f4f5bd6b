"""AdamW on a flat vector, and its learning-rate schedule."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from backends.micro import fused
from backends.micro.policy import norms
from orchestrator.kl.library_semantics import PLAIN, Dialect
from orchestrator.settings import Optimizer, Settings


class Moments(NamedTuple):
    """Adam's running means of the gradient and of its square, [N] each, updated in place."""

    first: Tensor
    second: Tensor

    @classmethod
    def zeros(cls, like: Tensor) -> "Moments":
        """Return moments of zero in the shape of `like`."""
        return cls(torch.zeros_like(like), torch.zeros_like(like))


def rate_of(settings: Settings, step: int, dialect: Dialect) -> float:
    """Return the learning rate of train step `step` under the dialect. `step` counts from 1."""
    if dialect.schedule_per_batch and not settings.max_staleness_steps:
        step -= (step - 1) % settings.batch.num_minibatches  # the first of its batch
    zero = int(dialect.warmup_from_zero and step <= settings.optimizer.num_warmup_steps)
    return learning_rate(settings.optimizer, step - zero, settings.num_train_steps)


def learning_rate(optimizer: Optimizer, step: int, num_train_steps: int) -> float:
    """Return the learning rate of train step `step`: a linear warm-up, then the schedule.

    `step` counts from 1.
    """
    warmup = optimizer.num_warmup_steps
    if step <= warmup:
        return optimizer.learning_rate * step / warmup
    if optimizer.schedule == "constant":
        return optimizer.learning_rate
    done = (step - 1 - warmup) / max(1, num_train_steps - warmup)
    factor = 1 - done if optimizer.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return optimizer.learning_rate * factor


@torch.no_grad()
def update(
    flat: Tensor,
    gradient: Tensor,
    moments: Moments,
    optimizer: Optimizer,
    step: int,
    rate: float,
    dialect: Dialect = PLAIN,
) -> Tensor:
    """Return `flat` after one AdamW step. `step` counts from 1. Loshchilov & Hutter 2019.

    The moments are updated in place.
    """
    decays_norms = dialect.decay_of == "all"
    given = flat, gradient, moments, optimizer, step, rate
    updated = fused.adamw(*given, decays_norms=decays_norms)
    if updated is not None:
        return updated
    first, second = moments
    first.lerp_(gradient, 1 - optimizer.beta1)
    second.mul_(optimizer.beta2).addcmul_(gradient, gradient, value=1 - optimizer.beta2)
    # As in torch.optim.AdamW: epsilon is added after the bias correction and the root.
    spread = second.div(1 - optimizer.beta2**step).sqrt_().add_(optimizer.epsilon)
    if optimizer.weight_decay:
        shrink = 1 - rate * optimizer.weight_decay
        shrunk = flat * shrink
        flat = shrunk if decays_norms else torch.where(norms(flat.device), flat, shrunk)
    return flat.addcdiv(first, spread, value=-rate / (1 - optimizer.beta1**step))


@torch.no_grad()
def clip(gradient: Tensor, max_norm: float | None) -> tuple[Tensor, float]:
    """Return a gradient [N] scaled to a norm of at most its bound, and its norm before that.

    max_norm: None: no bound.
    """
    norm = torch.linalg.vector_norm(gradient)
    bound = math.inf if max_norm is None else max_norm
    # As in torch.nn.utils.clip_grad_norm_, with its 1e-6.
    return gradient * (bound / (norm + 1e-6)).clamp(max=1.0), norm.item()
