"""What a dialect predicts of a run's own rollouts: the results of `Backend.replay`."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from orchestrator.library.rollout_dump import Values


class BatchPrediction(NamedTuple):
    """The prediction of one rollout batch, in the order and under the names of its dump."""

    step: int
    """Train steps after the batch."""
    observed: Mapping[str, float]
    """Quantity (rollout_dump.OBSERVED) -> value, the mean over the batch's train steps. What cannot
    be predicted is missing."""
    advantages: Values | None = None
    """Of each token, from the log-probabilities that the trainer reported, where it did."""
    logp_policy: Values | None = None
    """By the policy before the batch's first train step. None without a policy."""
    weights: Mapping[str, Any] | None = None
    """The policy after the batch, Hugging Face name -> tensor. None without a policy."""
