"""The forward and backward passes of many cells: by the kernels where they are, else by torch.

The functions are those of `batched.py`; `fused.py` has them by the kernels.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from backends.micro import batched, fused
from backends.micro.batched import Folded, PackedScores, Sampled
from backends.micro.fused import Packed
from backends.micro.rollout import Rollouts, Scored
from backends.micro.skills import PROMPT_TOKENS
from orchestrator.settings import EngineFormat

NODES = 1 << 14
"""Tokens of one tree of several cells, at most. It has up to 1.4 KB for each."""

Policies = Folded | Packed
"""C policies, ready for the passes."""


def prepared(flat: Tensor) -> Policies:
    """Return C policies of flat vectors [C, NUM_PARAMETERS]."""
    return fused.packed(flat) or batched.folded(flat)


def size(policy: Policies) -> tuple[int, torch.device]:
    """Return the number of policies, and where they are."""
    of_all = policy.flat if isinstance(policy, Packed) else policy.head
    return len(of_all), of_all.device


def sample(
    policy: Policies,
    prompts: Tensor,
    uniforms: Tensor,
    temperature: Tensor,
    top_p: Sequence[float],
    *,
    keep: bool = True,
    rounded: EngineFormat | None = None,
) -> Sampled:
    """Return one response for each row of uniforms; see `batched.sample`."""
    given = prompts, uniforms, temperature, top_p
    if isinstance(policy, Packed):
        return fused.sample(policy, *given, keep=keep, rounded=rounded)
    return batched.sample(policy, *given, keep=keep, rounded=rounded)


def score(
    policy: Policies,
    prompts: Tensor,
    tokens: Tensor,
    mask: Tensor,
    temperature: Tensor,
    *,
    keep: bool = False,
) -> PackedScores:
    """Return the log-probabilities of responses; see `batched.score`."""
    if isinstance(policy, Packed):
        return fused.score(policy, prompts, tokens, mask, temperature, keep=keep)
    return batched.score(policy, prompts, tokens, mask, temperature, keep=keep)


def score_alike(flat: Tensor, rollouts: Rollouts, temperature: float) -> list[Scored]:
    """Return the log-probabilities that one policy gives to responses [C, P, G, T] of C cells.

    The kernels compute equal beginnings once for all cells, the prompts among them.
    """
    policy = prepared(flat[None])
    heat = torch.full((1, 1, 1, 1), temperature, device=flat.device)
    given = rollouts.prompts, rollouts.tokens, rollouts.mask
    if not isinstance(policy, Packed):
        repeated = batched.folded(flat.expand(len(rollouts.prompts), -1))
        of_cells = batched.score(repeated, *given, heat)
        return [Scored(*each) for each in zip(of_cells.logp, of_cells.logps, strict=True)]
    cells, count, size, longest = rollouts.tokens.shape
    at_once = max(1, NODES // (count * (PROMPT_TOKENS + size * (longest - 1))))
    scored: list[Scored] = []
    for first in range(0, cells, at_once):
        prompts, tokens, mask = (
            each[first : first + at_once].flatten(0, 1)[None] for each in given
        )
        tree = fused.score(policy, prompts, tokens, mask, heat, keep=False)
        logp, logps = (each.view(-1, count, *each.shape[2:]) for each in (tree.logp, tree.logps))
        scored += [Scored(*each) for each in zip(logp, logps, strict=True)]
    return scored


def gradient(
    policy: Policies,
    scored: PackedScores,
    tokens: Tensor,
    slope: Tensor,
    temperature: Tensor,
    grad_logps: Sequence[Tensor | None] = (),
) -> Tensor:
    """Return the gradients [C, NUM_PARAMETERS] of a loss; see `batched.gradient`."""
    if isinstance(policy, Packed):
        return fused.gradient(policy, scored, slope, grad_logps)
    return batched.gradient(policy, scored, tokens, slope, temperature, grad_logps)
