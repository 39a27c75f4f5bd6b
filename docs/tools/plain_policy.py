"""The embedded policy written plainly: one policy, under autograd, with a key-value cache.

It is the same mathematics as `backends/micro/batched.py`. Pretraining uses it, and the tests hold
the trainer's passes to it. Shapes: P prompts of S tokens, G rollouts per prompt, T response tokens,
B sequences, L tokens, V vocabulary, D width, H heads of width E.
"""

import torch
import torch.nn.functional as F  # noqa: N812  (its name in the field)
from torch import Tensor

from backends.micro.policy import Layer, Layout, Weights, rotation, weights
from backends.micro.rollout import Rollouts, Scored, tree
from backends.micro.shape import (
    HEAD_WIDTH,
    NORM_EPSILON,
    NUM_HEADS,
    NUM_LAYERS,
    NUM_PARAMETERS,
    WIDTH,
)
from backends.micro.skills import EOS, PAD, PROMPT_TOKENS


def initial(seed: int) -> Tensor:
    """Return an untrained flat vector: norms 1, matrices normal with standard deviation 0.05."""
    flat = torch.randn(NUM_PARAMETERS, generator=torch.Generator().manual_seed(seed)) * 0.05
    views = weights(flat)
    for norm in (views.norm, *(n for x in views.layers for n in (x.attention_norm, x.mlp_norm))):
        norm.fill_(1.0)
    return flat


def forward(policy: Weights, tokens: Tensor, at: Layout) -> Tensor:
    """Return logits [B, L - at.first, V] of tokens [B, L] with the layout `at`."""
    x = F.embedding(tokens, policy.embedding)
    mask = at.mask
    for number, layer in enumerate(policy.layers):
        query, key, value = project(x, layer, at.rotation)
        if number == NUM_LAYERS - 1:  # above the last attention only the wanted rows matter
            x, query, mask = x[:, at.first :], query[:, :, at.first :], mask[at.first :]
        attention = F.scaled_dot_product_attention(query, key, value, attn_mask=mask.to(x.dtype))
        x = finish(x, attention, layer)
    return logits(x, policy)


def project(x: Tensor, layer: Layer, turn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return rotated queries, rotated keys and values [B, H, L, E] of activations [B, L, D]."""
    normed = F.rms_norm(x, (WIDTH,), layer.attention_norm, NORM_EPSILON)
    qkv = F.linear(normed, layer.qkv).view(*x.shape[:2], 3, NUM_HEADS, HEAD_WIDTH)
    pairs = qkv[:, :, :2].view(*x.shape[:2], 2, NUM_HEADS, HEAD_WIDTH // 2, 2)
    turned = torch.view_as_real(torch.view_as_complex(pairs) * turn).flatten(-2)
    query, key = turned.transpose(1, 3).unbind(2)
    return query, key, qkv[:, :, 2].transpose(1, 2)


def finish(x: Tensor, attention: Tensor, layer: Layer) -> Tensor:
    """Return the output of a layer: x plus the attention output [B, H, L, E] and the gated MLP."""
    x = x + F.linear(attention.transpose(1, 2).flatten(2), layer.output)
    normed = F.rms_norm(x, (WIDTH,), layer.mlp_norm, NORM_EPSILON)
    gate, up = F.linear(normed, layer.gate_up).chunk(2, -1)
    return x + F.linear(F.silu(gate) * up, layer.down)


def logits(x: Tensor, policy: Weights) -> Tensor:
    """Return next-token logits [..., V] of activations [..., D]."""
    return F.linear(F.rms_norm(x, (WIDTH,), policy.norm, NORM_EPSILON), policy.head)


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
