"""The forward and backward passes of many cells: by the kernels where they are, else by torch.

The functions are those of `batched.py`; `fused.py` has them by the kernels.
"""

from collections.abc import Sequence

from torch import Tensor

from backends.micro import batched, fused
from backends.micro.batched import Folded, PackedScores, Sampled
from backends.micro.fused import Packed
from orchestrator.settings import EngineFormat

Policies = Folded | Packed
"""C policies, ready for the passes."""


def prepared(flat: Tensor) -> Policies:
    """Return C policies of flat vectors [C, NUM_PARAMETERS]."""
    return fused.packed(flat) or batched.folded(flat)


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


def gradient(
    policy: Policies,
    scored: PackedScores,
    tokens: Tensor,
    slope: Tensor,
    temperature: Tensor,
    of_logps: Sequence[Tensor | None] = (),
) -> Tensor:
    """Return the gradients [C, NUM_PARAMETERS] of a loss; see `batched.gradient`."""
    if isinstance(policy, Packed):
        return fused.gradient(policy, scored, slope, of_logps)
    return batched.gradient(policy, scored, tokens, slope, temperature, of_logps)
