"""The passes of `batched.py` by the kernels (`kernels.c`): one cell after another, in the cache.

Shapes: C cells, P prompts, G responses, T tokens of the longest, V vocabulary. The functions are
those of `batched.py`, with its results; `passes.py` chooses.
"""

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from ctypes import c_double, c_int64, c_void_p
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from backends.micro import kernels
from backends.micro.batched import SCALE, PackedScores, Sampled
from backends.micro.policy import rotation
from backends.micro.rollout import Rollouts
from backends.micro.shape import MAX_TOKENS, NUM_PARAMETERS, NUM_TOKENS
from orchestrator.settings import EngineFormat, Optimizer

_REALS: dict[torch.dtype, kernels.Real] = {torch.float32: "float", torch.float64: "double"}
_ROUNDING: dict[EngineFormat | None, int] = {None: 0, "fp32": 0, "bf16": 1, "fp16": 2}
"""The kernels' names of formats of logits. Those of the 8-bit formats are bf16."""

# Here, so that the process that imports the trainer compiles, and not each one that it forks.
with suppress(kernels.Unavailable):
    kernels.loaded("float")


class Packed(NamedTuple):
    """C policies, as the kernels read them."""

    flat: Tensor
    """[C, NUM_PARAMETERS]"""
    panels: Tensor
    """[C, bytes]"""
    library: ctypes.CDLL

    @property
    def place(self) -> tuple[int, torch.device]:
        """Return the number of policies, and where they are."""
        return len(self.flat), self.flat.device

    @torch.no_grad()
    def sample(
        self,
        prompts: Tensor,
        uniforms: Tensor,
        temperature: Tensor,
        top_p: Sequence[float],
        *,
        keep: bool = True,
        rounded: EngineFormat | None = None,
    ) -> Sampled:
        """Return `Folded.sample`."""
        trees = Trees(self, uniforms.shape, temperature, _ROUNDING.get(rounded, 1), keep=keep)
        tokens = torch.empty(uniforms.shape, dtype=torch.long)
        mask = torch.empty(uniforms.shape)
        logp, entropy, logps = _empty_scores(self, uniforms.shape)
        prompts, uniforms = prompts.contiguous(), uniforms.float().contiguous()
        self.library.sample(
            ctypes.byref(trees.given),
            *map(_at, (prompts, uniforms)),
            (c_double * len(top_p))(*top_p),
            *map(_at, (tokens, mask, logp, entropy, logps)),
        )
        scored = PackedScores(logp, logps, trees, entropy)
        return Sampled(Rollouts(prompts, tokens, mask, logp), scored)

    @torch.no_grad()
    def score(
        self,
        prompts: Tensor,
        tokens: Tensor,
        mask: Tensor,
        temperature: Tensor,
        *,
        keep: bool = False,
    ) -> PackedScores:
        """Return `Folded.score`. Positions behind <eos> have log-probabilities of 0."""
        trees = Trees(self, tokens.shape, temperature, 0, keep=keep)
        logp, entropy, logps = _empty_scores(self, tokens.shape)
        prompts, tokens, mask = prompts.contiguous(), tokens.contiguous(), mask.float().contiguous()
        self.library.score(
            ctypes.byref(trees.given), *map(_at, (prompts, tokens, mask, logp, entropy, logps))
        )
        return PackedScores(logp, logps, trees, entropy)

    @torch.no_grad()
    def gradient(
        self,
        scored: PackedScores,
        tokens: Tensor,  # noqa: ARG002  (the trees have them)
        slope: Tensor,
        temperature: Tensor | float,  # noqa: ARG002  (the trees have it)
        grad_logps: Sequence[Tensor | None] = (),
    ) -> Tensor:
        """Return `Folded.gradient`."""
        trees = scored.activations
        if not isinstance(trees, Trees):
            raise TypeError("these log-probabilities are of another pass")
        result = torch.empty_like(self.flat)
        slope = slope.contiguous()
        for cell, memory in enumerate(trees.memory):
            further = grad_logps[cell] if cell < len(grad_logps) else None
            further = None if further is None else further.contiguous()
            work = torch.empty(self.library.slope_bytes(_at(memory)), dtype=torch.uint8)
            self.library.gradient(
                *map(_at, (self.flat[cell], self.panels[cell], memory)),
                *map(_at, (slope[cell], further, work, result[cell])),
            )
        return result


class _Pass(ctypes.Structure):
    """The struct `pass` of kernels.c."""

    _fields_ = (
        ("cells", c_int64),
        ("prompts", c_int64),
        ("size", c_int64),
        ("longest", c_int64),
        ("keep", c_int64),
        ("rounding", c_int64),
        ("policies", c_void_p),
        ("trees", c_void_p),
        ("temperature", c_void_p),
        ("turns", c_void_p),
    )


class _Adam(ctypes.Structure):
    """The struct `adam` of kernels.c."""

    _fields_ = (
        *((name, c_double) for name in ("beta1", "beta2", "epsilon", "rate", "shrink")),
        ("step", c_int64),
        ("decays_norms", c_int64),
    )


class Trees:
    """The forward pass of each of C cells over the tree of its responses.

    `keep`: for the backward pass.
    """

    def __init__(
        self,
        policy: Packed,
        shape: Sequence[int],
        temperature: Tensor,
        rounding: int,
        *,
        keep: bool,
    ):
        cells, prompts, size, longest = shape
        each = policy.library.tree_bytes(*map(c_int64, (prompts, size, longest, keep)))
        # Without a backward pass nothing is read of a tree later: all cells use one memory, which
        # stays in the cache.
        apart = cells if keep else 1
        memory = [torch.empty(each, dtype=torch.uint8) for _ in range(apart)]
        self.memory = memory if keep else memory * cells
        places = (c_void_p * cells)(*(one.data_ptr() for one in self.memory))
        # What the struct points to lives as long as it.
        self._heat = temperature.expand(cells, 1, 1, 1).flatten().float().contiguous()
        self._places, self._turns = places, _turns(policy.flat.dtype)
        self.given = _Pass(
            cells,
            prompts,
            size,
            longest,
            keep,
            rounding,
            policy.panels.data_ptr(),
            ctypes.cast(places, c_void_p),
            self._heat.data_ptr(),
            self._turns.data_ptr(),
        )


@cache
def _turns(dtype: torch.dtype) -> Tensor:
    """Return the rotations [position, query or key, cosine or sine, pair], scaled for scores."""
    turn = rotation(torch.arange(MAX_TOKENS))[:, 0, 0].to(dtype.to_complex())
    both = torch.stack([turn * SCALE, turn], 1)
    return torch.stack([both.real, both.imag], 2).contiguous()


def _library(flat: Tensor) -> ctypes.CDLL | None:
    """Return the kernels for numbers like these, or None where only torch can compute."""
    real = _REALS.get(flat.dtype)
    if real is None or flat.device.type != "cpu" or not kernels.is_wanted():
        return None
    try:
        return kernels.loaded(real).library
    except kernels.Unavailable:
        return None


def adamw(
    flat: Tensor,
    gradient: Tensor,
    moments: tuple[Tensor, Tensor],
    optimizer: Optimizer,
    step: int,
    rate: float,
    *,
    decays_norms: bool,
) -> Tensor | None:
    """Return `optimizer.update`, or None if the kernels cannot compute it."""
    library = _library(flat)
    tensors = flat, gradient, *moments
    if library is None or flat.shape != (NUM_PARAMETERS,):
        return None
    if not all(one.is_contiguous() and one.dtype == flat.dtype for one in tensors):
        return None
    how = _Adam(
        optimizer.beta1,
        optimizer.beta2,
        optimizer.epsilon,
        rate,
        1 - rate * optimizer.weight_decay,
        step,
        decays_norms,
    )
    updated = torch.empty_like(flat)
    library.adamw(*map(_at, (*tensors, updated)), ctypes.byref(how))
    return updated


def packed(flat: Tensor) -> Packed | None:
    """Return C policies [C, NUM_PARAMETERS], or None where only torch can compute."""
    library = _library(flat)
    if library is None:
        return None
    flat = flat.contiguous()
    panels = torch.empty(len(flat), library.policy_bytes(), dtype=torch.uint8)
    library.pack(c_int64(len(flat)), _at(flat), _at(panels))
    return Packed(flat, panels, library)


def _at(tensor: Tensor | None) -> c_void_p:
    return c_void_p(None if tensor is None else tensor.data_ptr())


def _empty_scores(policy: Packed, shape: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Return room for logp and entropy [C, P, G, T], and logps [C, P, 1 + G (T - 1), V]."""
    cells, prompts, size, longest = shape
    new = policy.flat.new_empty
    packed_shape = cells, prompts, 1 + size * (longest - 1), NUM_TOKENS
    return new(tuple(shape)), new(tuple(shape)), new(packed_shape)
