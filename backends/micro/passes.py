"""Policies ready for their passes: by the kernels where they are, else by torch.

Both kinds sample, score and give gradients; `batched.Folded` says how.
"""

import torch
from torch import Tensor

from backends.micro import batched, fused
from backends.micro.batched import Folded
from backends.micro.fused import Packed
from backends.micro.rollout import Rollouts, Scored

Policies = Folded | Packed
"""C policies, ready for the passes."""


def prepared(flat: Tensor) -> Policies:
    """Return C policies of flat vectors [C, NUM_PARAMETERS]."""
    return fused.packed(flat) or batched.folded(flat)


def temperature(value: float, like: Tensor) -> Tensor:
    """Return a temperature as the passes of one policy take it, [1, 1, 1, 1]."""
    return torch.full((1, 1, 1, 1), value, device=like.device)


def scored(flat: Tensor, rollouts: Rollouts, heat: float) -> Scored:
    """Return the log-probabilities that a policy gives to responses [1, P, G, T], at a
    temperature."""
    given = rollouts.prompts, rollouts.tokens, rollouts.mask
    of_one = prepared(flat[None]).score(*given, temperature(heat, flat))
    return Scored(of_one.logp[0], of_one.logps[0])
