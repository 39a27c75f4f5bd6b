"""The embedded policy: a Llama of 49,728 parameters in one flat vector.

Shapes: B sequences, L tokens, V vocabulary, D width, H heads of width E. With a flat vector, an
optimizer step, a snapshot and a checkpoint are each a few operations on one tensor. The two
elements of a rotary pair are adjacent, as in Meta's release, so that a rotation is one complex
product. `huggingface.py` converts to Hugging Face's order and back.
"""

import math
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from backends.micro.shape import (
    HEAD_WIDTH,
    LAYER_SHAPES,
    NUM_LAYERS,
    ROPE_BASE,
    SHAPES,
    SIZES,
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


def device() -> torch.device:
    """Return the device for training: a GPU if torch finds one. Only the CPU is bit-exact."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def one_quiet_core() -> None:
    """Use one thread and flush denormals, so that no other process can change a result."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
