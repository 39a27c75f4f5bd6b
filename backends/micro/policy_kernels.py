"""The kernels for policies that are evaluated. Slow to import: it loads torch."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from backends.micro import fused, huggingface, kernels
from backends.micro.shape import MAX_TOKENS
from backends.micro.skills import PROMPT_TOKENS
from orchestrator.errors import CheckpointError


def for_checkpoint(checkpoint: Path) -> "KernelPolicy | None":
    """Return the kernels for policies like a checkpoint's.

    None: it is not one of the embedded trainer's own, or this machine has no kernels.
    """
    if not huggingface.is_own(checkpoint) or not kernels.is_wanted():
        return None
    try:
        return KernelPolicy(kernels.loaded("float").name)
    except kernels.Unavailable:
        return None


class KernelPolicy:
    """One policy, computed by the kernels; see orchestrator.library.protocol.PolicyKernels."""

    prompt_tokens = PROMPT_TOKENS
    longest = MAX_TOKENS - PROMPT_TOKENS

    def __init__(self, name: str):
        self.name = name
        self._policy: fused.Packed | None = None

    def take(self, weights: Mapping[str, Tensor]) -> None:
        """Take the weights of a checkpoint, by their names."""
        self._policy = fused.packed(huggingface.from_tensors(weights)[None])

    def sample(self, prompts: Tensor, exponentials: Tensor) -> tuple[Tensor, Tensor]:
        """Return tokens [B, T] of responses to prompts, and which are responses.

        Raise CheckpointError if the policy's probabilities are not numbers.
        """
        tokens, is_token, logp = fused.sample_as_multinomial(self._packed(), prompts, exponentials)
        if not logp.isfinite().all():
            raise CheckpointError(
                "the policy gives probabilities that are not numbers: its run diverged, and there "
                "is no policy to evaluate; an earlier checkpoint may be whole"
            )
        return tokens, is_token

    def logps(self, prompts: Tensor, tokens: Tensor, is_token: Tensor) -> Tensor:
        """Return the log-probabilities [B, T, V] at each token of responses."""
        given = prompts[None], tokens[None, :, None], is_token[None, :, None]
        return fused.score(self._packed(), *given, torch.ones(1, 1, 1, 1), keep=False).logps[0]

    def _packed(self) -> fused.Packed:
        if self._policy is None:
            raise RuntimeError("this policy has no weights, or the kernels cannot compute them")
        return self._policy
