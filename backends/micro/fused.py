"""A policy ready for its passes: by the kernels (`kernels.c`) where they are, else by torch.

Shapes: P prompts, G responses, T tokens of the longest, V vocabulary. Both kinds sample, score and
give gradients, with equal results; `batched.Folded` says how. The kernels take several policies at
once; here it is always one.
"""

import ctypes
from contextlib import suppress
from ctypes import c_double, c_float, c_int64, c_void_p
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from backends.micro import kernels
from backends.micro.batched import SCALE, Folded, Sampled, folded
from backends.micro.policy import rotation
from backends.micro.rollout import Rollouts, Scored
from backends.micro.shape import MAX_TOKENS, NUM_PARAMETERS, NUM_TOKENS
from orchestrator.settings import EngineFormat, Optimizer

_REALS: dict[torch.dtype, kernels.Real] = {torch.float32: "float", torch.float64: "double"}
_ROUNDING: dict[EngineFormat | None, int] = {None: 0, "fp32": 0, "bf16": 1, "fp16": 2}
"""The kernels' names of formats of logits. Those of the 8-bit formats are bf16."""

# Here, so that the process that imports the trainer compiles, and not each one that it forks.
with suppress(kernels.Unavailable):
    kernels.loaded("float")


class Packed(NamedTuple):
    """A policy, as the kernels read it."""

    flat: Tensor
    """[NUM_PARAMETERS]"""
    panels: Tensor
    """Its matrices in the kernels' order, in bytes."""
    library: ctypes.CDLL

    @property
    def device(self) -> torch.device:
        """Return where it is."""
        return self.flat.device

    @torch.no_grad()
    def sample(
        self,
        prompts: Tensor,
        uniforms: Tensor,
        temperature: float = 1.0,
        top_p: float = 1.0,
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
            ctypes.byref(c_double(top_p)),
            *map(_at, (tokens, mask, logp, entropy, logps)),
        )
        scored = Scored(logp, logps, trees, entropy)
        return Sampled(Rollouts(prompts, tokens, mask, logp), scored)

    @torch.no_grad()
    def score(
        self,
        prompts: Tensor,
        tokens: Tensor,
        mask: Tensor,
        temperature: float = 1.0,
        *,
        keep: bool = False,
    ) -> Scored:
        """Return `Folded.score`. Positions behind <eos> have log-probabilities of 0."""
        trees = Trees(self, tokens.shape, temperature, 0, keep=keep)
        logp, entropy, logps = _empty_scores(self, tokens.shape)
        prompts, tokens, mask = prompts.contiguous(), tokens.contiguous(), mask.float().contiguous()
        self.library.score(
            ctypes.byref(trees.given), *map(_at, (prompts, tokens, mask, logp, entropy, logps))
        )
        return Scored(logp, logps, trees, entropy)

    @torch.no_grad()
    def gradient(
        self,
        scored: Scored,
        tokens: Tensor,  # noqa: ARG002  (batched's needs them; `scored` has them here)
        slope: Tensor,
        temperature: float = 1.0,  # noqa: ARG002  (as above)
        further: Tensor | None = None,
    ) -> Tensor:
        """Return `Folded.gradient`."""
        trees = scored.activations
        if not isinstance(trees, Trees):
            raise TypeError("these log-probabilities are of another pass")
        slope, result = slope.contiguous(), torch.empty_like(self.flat)
        further = None if further is None else further.contiguous()
        work = torch.empty(self.library.slope_bytes(_at(trees.memory)), dtype=torch.uint8)
        given = self.flat, self.panels, trees.memory, slope, further, work, result
        self.library.gradient(*map(_at, given))
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
    """The forward pass of a policy over the tree of its responses.

    `keep`: for the backward pass.
    """

    def __init__(
        self, policy: Packed, shape: torch.Size, temperature: float, rounding: int, *, keep: bool
    ):
        sizes = *shape, keep
        needed = policy.library.tree_bytes(*map(c_int64, sizes))
        self.memory = torch.empty(needed, dtype=torch.uint8)
        # What the struct points to lives as long as it.
        self._place = c_void_p(self.memory.data_ptr())
        self._heat, self._turns = c_float(temperature), _turns(policy.flat.dtype)
        self.given = _Pass(
            1,
            *sizes,
            rounding,
            policy.panels.data_ptr(),
            ctypes.addressof(self._place),
            ctypes.addressof(self._heat),
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
    """Return the policy of a flat vector [NUM_PARAMETERS], or None where only torch can compute."""
    library = _library(flat)
    if library is None:
        return None
    flat = flat.contiguous()
    panels = torch.empty(library.policy_bytes(), dtype=torch.uint8)
    library.pack(c_int64(1), _at(flat), _at(panels))
    return Packed(flat, panels, library)


Policy = Folded | Packed
"""A policy, ready for its passes."""


def prepared(flat: Tensor) -> Policy:
    """Return the policy of a flat vector [NUM_PARAMETERS]."""
    return packed(flat) or folded(flat)


def _at(tensor: Tensor | None) -> c_void_p:
    return c_void_p(None if tensor is None else tensor.data_ptr())


def _empty_scores(policy: Packed, shape: torch.Size) -> tuple[Tensor, Tensor, Tensor]:
    """Return room for logp and entropy [P, G, T], and logps [P, 1 + G (T - 1), V]."""
    prompts, size, longest = shape
    new = policy.flat.new_empty
    return new(shape), new(shape), new(prompts, 1 + size * (longest - 1), NUM_TOKENS)
