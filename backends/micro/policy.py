"""The embedded policy: a Llama of 49,728 parameters in one flat vector.

Shapes: B sequences, L tokens, V vocabulary, D width, H heads of width E. With a flat vector, an
optimizer step, a snapshot and a checkpoint are each a few operations on one tensor. The two
elements of a rotary pair are adjacent, as in Meta's release, so that a rotation is one complex
product. `huggingface.py` converts to Hugging Face's order and back.
"""

import ctypes
import math
from contextlib import suppress
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  (its name in the field)
from torch import Tensor

from backends.micro.shape import (
    HEAD_WIDTH,
    LAYER_SHAPES,
    NORM_EPSILON,
    NUM_HEADS,
    NUM_LAYERS,
    NUM_PARAMETERS,
    ROPE_BASE,
    SHAPES,
    SIZES,
    WIDTH,
)


class Layer(NamedTuple):
    """The matrices of one transformer layer."""

    attention_norm: Tensor
    qkv: Tensor
    output: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


class Weights(NamedTuple):
    """The matrices of a policy, as views into a flat vector."""

    embedding: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Tensor


def weights(flat: Tensor) -> Weights:
    """Return the matrices of a flat vector [..., NUM_PARAMETERS]. Gradients flow back to it."""
    parts = [
        part.view(*flat.shape[:-1], *shape)
        for part, shape in zip(torch.split(flat, SIZES, dim=-1), SHAPES, strict=True)
    ]
    count = len(LAYER_SHAPES)
    layers = tuple(Layer(*parts[1 + i * count : 1 + (i + 1) * count]) for i in range(NUM_LAYERS))
    return Weights(parts[0], layers, parts[-2], parts[-1])


@cache
def norms(device: torch.device) -> Tensor:
    """Return [NUM_PARAMETERS] bool: True for the weights of the norms. There are no biases."""
    return torch.cat(
        [torch.full((size,), len(shape) == 1) for size, shape in zip(SIZES, SHAPES, strict=True)]
    ).to(device)


def initial(seed: int) -> Tensor:
    """Return an untrained flat vector: norms 1, matrices normal with standard deviation 0.05."""
    flat = torch.randn(NUM_PARAMETERS, generator=torch.Generator().manual_seed(seed)) * 0.05
    views = weights(flat)
    for norm in (views.norm, *(n for x in views.layers for n in (x.attention_norm, x.mlp_norm))):
        norm.fill_(1.0)
    return flat


class Layout(NamedTuple):
    """The positions of the tokens in a packed sequence, and which tokens each one attends to."""

    rotation: Tensor
    """Complex [L, 1, 1, E/2]."""
    mask: Tensor
    """[L, L], 0 where row may see column and -inf elsewhere."""
    first: int
    """The first position whose logits are needed."""

    def to(self, device: torch.device) -> "Layout":
        """Return the same layout on another device."""
        return Layout(self.rotation.to(device), self.mask.to(device), self.first)


def layout(positions: Tensor, visible: Tensor, first: int) -> Layout:
    """Return the layout for position ids [L] and a boolean attention mask [L, L]."""
    mask = torch.zeros(visible.shape).masked_fill_(~visible, -math.inf)
    return Layout(rotation(positions), mask, first)


def rotation(positions: Tensor) -> Tensor:
    """Return the rotary factors of positions [L]: complex [L, 1, 1, E/2]."""
    pairs = torch.arange(0, HEAD_WIDTH, 2, dtype=torch.float32)
    angles = positions[:, None].float() / ROPE_BASE ** (pairs / HEAD_WIDTH)
    return torch.polar(torch.ones_like(angles), angles)[:, None, None, :]


@cache
def chain(length: int, first: int, device: torch.device) -> Layout:
    """Return the plain causal layout of `length` tokens."""
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    return layout(torch.arange(length), causal, first).to(device)


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


def device() -> torch.device:
    """Return the device for training: a GPU if torch finds one. Only the CPU is bit-exact."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def one_quiet_core() -> None:
    """Use one thread and flush denormals, so that no other process can change a result."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    keep_memory()


def keep_memory() -> None:
    """Keep freed memory in this process, where the C library is glibc.

    Otherwise the kernel fills fresh pages with zeros for each large tensor: a tenth of the time of
    an update. The kept memory is at most the largest memory in use at one time.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for number, value in _MALLOPT:
            mallopt(number, value)


_MALLOPT = ((-3, 32 << 20), (-1, 1 << 30), (-2, 16 << 20))
"""Options in glibc's malloc.h with bytes: M_MMAP_THRESHOLD (its maximum), M_TRIM_THRESHOLD,
M_TOP_PAD."""
