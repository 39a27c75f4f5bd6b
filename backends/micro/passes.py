"""The policies of many cells, ready for their passes: by the kernels where they are, else by torch.

Both kinds sample, score and give gradients; `batched.Folded` says how.
"""

import torch
from torch import Tensor

from backends.micro import batched, fused
from backends.micro.batched import Folded
from backends.micro.fused import Packed
from backends.micro.rollout import Rollouts, Scored
from backends.micro.skills import PROMPT_TOKENS

NODES = 1 << 14
"""Tokens of one tree of several cells, at most. It has up to 1.4 KB for each."""

Policies = Folded | Packed
"""C policies, ready for the passes."""


def prepared(flat: Tensor) -> Policies:
    """Return C policies of flat vectors [C, NUM_PARAMETERS]."""
    return fused.packed(flat) or batched.folded(flat)


def score_alike(flat: Tensor, rollouts: Rollouts, temperature: float) -> list[Scored]:
    """Return the log-probabilities that one policy gives to responses [C, P, G, T] of C cells.

    The kernels compute equal beginnings once for all cells, the prompts among them.
    """
    policy = prepared(flat[None])
    heat = torch.full((1, 1, 1, 1), temperature, device=flat.device)
    given = rollouts.prompts, rollouts.tokens, rollouts.mask
    if not isinstance(policy, Packed):
        repeated = batched.folded(flat.expand(len(rollouts.prompts), -1))
        of_cells = repeated.score(*given, heat)
        return [Scored(*each) for each in zip(of_cells.logp, of_cells.logps, strict=True)]
    cells, count, size, longest = rollouts.tokens.shape
    at_once = max(1, NODES // (count * (PROMPT_TOKENS + size * (longest - 1))))
    scored: list[Scored] = []
    for first in range(0, cells, at_once):
        prompts, tokens, mask = (
            each[first : first + at_once].flatten(0, 1)[None] for each in given
        )
        tree = policy.score(prompts, tokens, mask, heat)
        logp, logps = (each.view(-1, count, *each.shape[2:]) for each in (tree.logp, tree.logps))
        scored += [Scored(*each) for each in zip(logp, logps, strict=True)]
    return scored
