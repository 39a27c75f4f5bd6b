"""A dialect's prediction of a run's rollouts. The embedded trainer's lab/replay.py computes it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from orchestrator.library.rollout_dump import Values


class BatchPrediction(NamedTuple):
    """A dialect's prediction of one rollout batch, in the order and under the names of its dump."""

    step: int
    """Number of train steps of the run after the batch."""
    observed: Mapping[str, float]
    """Quantity (rollout_dump.OBSERVED) -> its mean over the batch's train steps. A quantity that
    cannot be predicted is absent."""
    advantages: Values | None = None
    """The advantage of each token, from the log-probabilities that the trainer reported, if any."""
    logp_policy: Values | None = None
    """Log-probabilities before the batch's first train step. None without a policy."""
    weights: Mapping[str, Any] | None = None
    """The policy after the batch, Hugging Face name -> tensor. None without a policy."""
