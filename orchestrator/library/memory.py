"""What a launch takes of a GPU and of a disk: estimates, and a bound below which it cannot start.

Sources. Weights, gradients and optimizer: bytes a parameter, divided by the GPUs that share them
(Rajbhandari et al. 2020, ZeRO, §3). Activations of a layer: 34 bytes x tokens x hidden size in
16-bit, without the attention scores, which flash attention does not keep (Korthikanti et al. 2022,
Reducing Activation Recomputation, §4.1); with checkpointing 2 bytes a layer, and one layer whole.
Logits: tokens x vocabulary in 16-bit, in fp32, and the fp32 gradient. vLLM takes the share that it
is given. Buffers of collectives, the CUDA context and fragments are not counted.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from orchestrator.library.model_size import ModelSize
from orchestrator.settings import Cadence, Lora, Settings

GIB = 2.0**30
_ADAPTER_BYTES = 4 + 4 + 8
"""Of each parameter: weight, gradient, and AdamW's two moments."""
GPU_GIB: Mapping[str, float] = {
    "a100": 80,
    "h100": 80,
    "h200": 141,
    "b200": 180,
    "l40s": 48,
    "a10": 24,
}
"""Memory of one GPU, from the vendor's data sheets, by the start of its name; `a100-40gb` names
its own."""


@dataclass(frozen=True, slots=True)
class GpuUse:
    """What a launch holds on a GPU that trains, in bytes a parameter unless said otherwise."""

    gpus: int
    """GPUs that share weights, gradients and optimizer; 1 if each has all of it."""
    weights: float
    gradients: float
    optimizer: float
    """AdamW's two moments, with the fp32 weights where the others are 16-bit."""
    tokens: int
    """Most tokens of one forward and backward pass."""
    reference: float = 0
    """The reference policy, shared like the policy."""
    checkpointing: bool = True
    """Activations are computed again in the backward pass."""
    engine_share: float = 0
    """The share of a GPU's memory that the inference engine takes."""
    engine_gpus: int = 1
    """GPUs that share one inference engine."""
    together: bool = True
    """True: the engine is on the GPUs that train."""
    kept_while_sampling: float = 0
    """What of policy and reference stays on a GPU while its engine samples, before sharing."""
    node: float = 0
    """What all processes of a node together hold in its memory before they share the weights."""


def longest_sequence(settings: Settings) -> int:
    """Return the tokens of the longest prompt and response together."""
    return settings.data.max_prompt_tokens + settings.rollout.max_response_tokens


def micro_batch(sequences: int, tokens: int, most_tokens: int, most: int | None = None) -> int:
    """Return the size of a micro batch: a divisor of `sequences` within two bounds, at least 1.

    tokens: of the longest sequence. most: sequences. The bounds that backends give are guesses, not
    measurements.
    """
    largest = min(sequences, most or sequences, max(1, most_tokens // tokens))
    return next(n for n in range(largest, 0, -1) if sequences % n == 0)


class CheckpointUse(NamedTuple):
    """What the checkpoints of a cell take of a disk, in bytes a parameter."""

    policies: int
    """Checkpoints whose policies are kept until `orch prune`."""
    policy: float
    """A policy: the weights that evaluation reads, or exports."""
    states: int
    """States to resume from that lie there at the same time, at most."""
    state: float
    """A state without what `policy` counts."""

    def num_bytes(self, num_parameters: float) -> float:
        """Return the most bytes of a cell of this size."""
        return (self.policies * self.policy + self.states * self.state) * num_parameters


def saves(cadence: Cadence, num_train_steps: int) -> int:
    """Return the number of checkpoints that a cadence asks for, the last step's among them."""
    return -(-num_train_steps // (cadence.checkpoint_every_steps or num_train_steps))


class MemoryEstimate(NamedTuple):
    """GiB of a GPU, estimated; none of it was measured."""

    gpu: float | None
    """What a GPU has; None if its kind is not known."""
    training: Mapping[str, float]
    """Part -> GiB while it trains. `activations` and `adapters` are absent if the model's shape is
    not known."""
    sampling: Mapping[str, float]
    """Part -> GiB while the engine samples, on the GPU of an engine."""
    least: float
    """Weights, gradients and optimizer alone: no launch of this kind takes less."""
    engine_weights: float
    """bf16 weights in one engine's GPU."""
    node: float
    """What the processes of a node hold in its memory at their start."""

    @property
    def peak(self) -> float:
        """Return the larger of both phases."""
        return max(sum(self.training.values()), sum(self.sampling.values()))

    @property
    def cannot_fit(self) -> bool:
        """Return True if the parts that cannot be left out are more than a GPU has."""
        return self.gpu is not None and self.least > self.gpu


def gpu_gib(name: str) -> float | None:
    """Return the memory of a GPU in GiB by its name, or None for an unknown kind."""
    lower = name.lower()
    if match := re.search(r"(\d+)\s*gi?b", lower):
        return float(match[1])
    return next((gib for kind, gib in GPU_GIB.items() if lower.startswith(kind)), None)


def estimate(use: GpuUse, size: ModelSize, gpu: str, lora: Lora | None = None) -> MemoryEstimate:
    """Return the memory that a launch takes of each GPU.

    lora: the adapters that train. They are shared like the policy, and fp32 with their gradients
    and AdamW's moments.
    """
    each, memory = size.num_parameters / GIB, gpu_gib(gpu)
    shared = each / use.gpus
    training = {
        "weights": use.weights * shared,
        "gradients": use.gradients * shared,
        "optimizer": use.optimizer * shared,
        "reference": use.reference * shared,
    }
    least = sum(training[part] for part in ("weights", "gradients", "optimizer"))
    if (shape := size.shape) is not None:
        adapters = shape.adapter_parameters(lora) if lora else 0.0
        training["adapters"] = _ADAPTER_BYTES * adapters / use.gpus / GIB
        layer = 34.0 * use.tokens * shape.hidden_size
        kept = 2.0 * use.tokens * shape.hidden_size if use.checkpointing else layer
        whole = layer if use.checkpointing else 0.0
        logits = (2.0 + 4.0 + 4.0) * use.tokens * shape.vocab_size
        training["activations"] = (kept * shape.num_hidden_layers + whole + logits) / GIB
    sampling = {"engine": use.engine_share * (memory or 0.0)}
    if use.together:
        sampling["trainer"] = use.kept_while_sampling * shared
    parts = {name: gib for name, gib in training.items() if gib}
    engine = 2 * each / use.engine_gpus
    return MemoryEstimate(memory, parts, sampling, least, engine, use.node * each)
