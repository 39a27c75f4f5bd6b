"""Sample responses with a key-value cache, and score a group packed into one sequence.

Shapes: P prompts of S tokens, G rollouts per prompt, T response tokens, V vocabulary. The rollouts
of a group share their prompt. So a group is packed as the prompt and G branches: S + G (T - 1)
tokens instead of G (S + T - 1). Position ids restart in each branch, and a mask keeps a branch from
attending to another branch.
"""

from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  (its name in the field)
from torch import Tensor

from backends.micro.policy import (
    Layout,
    Weights,
    finish,
    forward,
    layout,
    logits,
    project,
    rotation,
)
from backends.micro.shape import HEAD_WIDTH, NUM_HEADS
from backends.micro.skills import EOS, PAD, PROMPT_TOKENS


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


@torch.no_grad()
def sample(
    policy: Weights, prompts: Tensor, uniforms: Tensor, temperature: float, top_p: float
) -> Rollouts:
    """Return one response for each row of uniforms [P, G, T] in [0, 1), to prompts [P, S].

    Use inverse-CDF sampling, so that equal uniforms give equal tokens in any batch. T of the result
    is the length of the longest response. `logp` is that of the distribution before top_p truncates
    it.
    """
    groups, size, longest = uniforms.shape
    caches, x = _prefill(policy, prompts, size, longest)
    turns = rotation(torch.arange(PROMPT_TOKENS, PROMPT_TOKENS + longest)).to(prompts.device)
    draws = uniforms.reshape(groups * size, longest)
    alive = torch.ones(groups * size, dtype=torch.bool, device=prompts.device)
    tokens, masks, logps = [], [], []
    for t in range(longest):
        logp = (logits(x, policy) / temperature).log_softmax(-1)
        token = torch.where(alive, _draw(logp, draws[:, t], top_p), PAD)
        tokens.append(token)
        masks.append(alive)
        logps.append(logp.gather(-1, token[:, None])[:, 0])
        alive = alive & (token != EOS)
        if t + 1 == longest or not alive.any():
            break
        x = _decode(policy, token, caches, t, turns[t : t + 1])
    mask = torch.stack(masks, -1).view(groups, size, -1).to(x.dtype)
    shape = mask.shape
    return Rollouts(
        prompts,
        torch.stack(tokens, -1).view(shape),
        mask,
        torch.stack(logps, -1).view(shape) * mask,
    )


def score(
    policy: Weights, prompts: Tensor, tokens: Tensor, mask: Tensor, temperature: float = 1.0
) -> Scored:
    """Return the log-probabilities of responses [P, G, T], from one packed forward pass."""
    at, index = tree(tokens.shape[1], tokens.shape[2], tokens.device)
    packed = torch.cat([prompts, tokens[..., :-1].flatten(1)], 1)
    out = forward(policy, packed, at)
    logps = (out if temperature == 1.0 else out / temperature).log_softmax(-1)
    chosen = index * logps.shape[-1] + tokens.flatten(1)
    return Scored(logps.flatten(1).gather(1, chosen).view(tokens.shape) * mask, logps)


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
    """Return the value at the packed position that predicts each response token, [..., P, G, T].

    `per_row`: values [..., P, 1 + G (T - 1)].
    """
    _, index = tree(shape[-2], shape[-1], per_row.device)
    return per_row[..., index].view(shape)


def _prefill(
    policy: Weights, prompts: Tensor, size: int, longest: int
) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """Return each layer's key and value cache [P G, H, S + T - 1, E], and activations [P G, D].

    The activations are those of the prompt's last token. Each prompt is read once for its group.
    """
    turn = rotation(torch.arange(PROMPT_TOKENS)).to(prompts.device)
    x = F.embedding(prompts, policy.embedding)
    caches = []
    for layer in policy.layers:
        query, key, value = project(x, layer, turn)
        attention = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = finish(x, attention, layer)
        room = (len(prompts) * size, NUM_HEADS, PROMPT_TOKENS + longest - 1, HEAD_WIDTH)
        cache_pair = x.new_empty(room), x.new_empty(room)
        for cached, fresh in zip(cache_pair, (key, value), strict=True):
            cached[:, :, :PROMPT_TOKENS] = fresh.repeat_interleave(size, 0)
        caches.append(cache_pair)
    return caches, x[:, -1].repeat_interleave(size, 0)


def _decode(
    policy: Weights, token: Tensor, caches: list[tuple[Tensor, Tensor]], t: int, turn: Tensor
) -> Tensor:
    """Return activations [B, D] after response token number `t`. Add the token to the caches."""
    x = F.embedding(token[:, None], policy.embedding)
    position = PROMPT_TOKENS + t
    for layer, (keys, values) in zip(policy.layers, caches, strict=True):
        query, key, value = project(x, layer, turn)
        keys[:, :, position], values[:, :, position] = key[:, :, 0], value[:, :, 0]
        attention = F.scaled_dot_product_attention(
            query, keys[:, :, : position + 1], values[:, :, : position + 1]
        )
        x = finish(x, attention, layer)
    return x[:, 0]


def _draw(logp: Tensor, uniform: Tensor, top_p: float) -> Tensor:
    """Return one token for each row of `logp` [B, V]: the inverse CDF at `uniform` [B]."""
    mass = logp.exp()
    if top_p < 1.0:
        ordered, order = mass.sort(stable=True, dim=-1, descending=True)
        # The mass before a token decides, so the token that crosses top_p is still inside.
        outside = ordered.cumsum(-1) - ordered >= top_p
        mass = mass.scatter(-1, order, ordered.masked_fill(outside, 0.0))
    heights = mass.cumsum(-1)
    # Times the whole mass, because it is less than 1 after top_p and by rounding.
    token = (heights <= uniform[:, None] * heights[:, -1:]).sum(-1)
    # Rounding may put the draw at the last height: all tokens are then counted, one too many.
    return token.clamp_(max=logp.shape[-1] - 1)
