"""Sampled and scored responses, and how a group is packed into one sequence.

Shapes: P prompts of S tokens, G rollouts per prompt, T response tokens, V vocabulary. The rollouts
of a group share their prompt. So a group is packed as the prompt and G branches: S + G (T - 1)
tokens instead of G (S + T - 1). Position ids restart in each branch, and a mask keeps a branch from
attending to another branch.
"""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from backends.micro.policy import Layout, layout
from backends.micro.skills import PROMPT_TOKENS


class Rollouts(NamedTuple):
    """Sampled responses of P groups."""

    prompts: Tensor
    """[P, S]"""
    tokens: Tensor
    """[P, G, T], <pad> after <eos>."""
    mask: Tensor
    """[P, G, T] float, 1 up to and with <eos>."""
    logp: Tensor
    """[P, G, T], log-probability under the rollout policy at its temperature; 0 where masked."""


class Scored(NamedTuple):
    """The log-probabilities that a policy gives to responses."""

    logp: Tensor
    """[P, G, T], of the tokens; 0 where masked."""
    logps: Tensor
    """[P, 1 + G (T - 1), V], of the whole vocabulary at each packed position."""
    activations: object = None
    """Of the forward pass, for its backward pass."""
    entropies: Tensor | None = None
    """[P, G, T], of the distribution of each token, where the pass has computed them."""

    def entropy(self) -> Tensor:
        """Return the entropy of the distribution of each token, [P, G, T]."""
        if self.entropies is not None:
            return self.entropies
        return rows_of(-(self.logps.exp() * self.logps).sum(-1), self.logp.shape)


@cache
def tree(size: int, longest: int, device: torch.device) -> tuple[Layout, Tensor]:
    """Return the layout of a packed group, and the row that predicts each of its G T tokens."""
    steps, branches = torch.arange(longest - 1), torch.arange(size)
    trunk = torch.arange(PROMPT_TOKENS)
    positions = torch.cat([trunk, (PROMPT_TOKENS + steps).repeat(size)])
    branch = torch.cat([torch.full_like(trunk, -1), branches.repeat_interleave(longest - 1)])
    # A token sees what is earlier, in the prompt (branch -1) and in its own branch.
    earlier = positions[:, None] >= positions[None, :]
    same = (branch[None, :] == -1) | (branch[None, :] == branch[:, None])
    rows = 1 + branches[:, None] * (longest - 1) + steps  # row 0 is the prompt's last token
    index = torch.cat([torch.zeros(size, 1, dtype=torch.long), rows], 1).flatten()
    return layout(positions, earlier & same, PROMPT_TOKENS - 1).to(device), index.to(device)


def rows_of(per_row: Tensor, shape: torch.Size) -> Tensor:
    """Return the value at the packed position that predicts each response token, [P, G, T].

    `per_row`: values [P, 1 + G (T - 1)].
    """
    _, index = tree(shape[-2], shape[-1], per_row.device)
    return per_row[..., index].view(shape)
