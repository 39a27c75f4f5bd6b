"""The inference engine's copy of a policy: weights and logits rounded as precision.rollout asks.

The trainer computes in fp32. A rounding engine samples from another distribution, so that the
mismatch between the two is real, and so are the weights that correct it. Weights and logits are
rounded; activations stay in fp32.
"""

import torch
from torch import Tensor

from backends.micro.policy import weights
from orchestrator.settings import EngineFormat, Settings

ROUNDED_AS = {"bf16": torch.bfloat16, "fp16": torch.float16}
EIGHT_BITS = ("fp8", "int8")
"""Matrices have 8 bits and a scale for each output, as vLLM quantises them; embedding, norms, head
and logits are bf16."""
FP8 = torch.float8_e4m3fn


def rounding(settings: Settings) -> EngineFormat | None:
    """Return the format in which a cell's engine samples, or None if it samples as it trains."""
    rollout_format = settings.precision.rollout
    return None if rollout_format == "fp32" else rollout_format


def copied(policy: Tensor, rounded: EngineFormat | None) -> Tensor:
    """Return the engine's weights of a policy [NUM_PARAMETERS]."""
    copy = near(policy, rounded)
    if rounded not in EIGHT_BITS:
        return copy
    matrices, quantised = weights(policy), weights(copy)
    for layer, into in zip(matrices.layers, quantised.layers, strict=True):
        for name in ("qkv", "output", "gate_up", "down"):
            getattr(into, name).copy_(_quantised(getattr(layer, name), rounded))
    return copy


def near(values: Tensor, rounded: EngineFormat | None) -> Tensor:
    """Return values [...] rounded to a 16-bit format, as fp32. For an 8-bit engine that is bf16."""
    if rounded is None:
        return values
    return values.to(ROUNDED_AS.get(rounded, torch.bfloat16)).to(values.dtype)


def _quantised(matrix: Tensor, rounded: EngineFormat) -> Tensor:
    """Return [..., out, in] rounded to 8 bits, each row scaled by its largest magnitude."""
    # A row of zeros would divide by 0.
    largest = matrix.abs().amax(-1, keepdim=True).clamp_min(1e-12)
    if rounded == "int8":
        scale = largest / 127
        return (matrix / scale).round() * scale
    scale = largest / torch.finfo(FP8).max
    return (matrix / scale).to(FP8).to(matrix.dtype) * scale
