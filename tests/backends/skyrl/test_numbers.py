"""The loss that orch_skyrl.py registers; its numbers are held in tests/losses/test_libraries.py."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from backends.skyrl.launch.orch_skyrl import rollout_ppo

BOUNDS = {"eps_clip_low": 0.2, "eps_clip_high": 0.3, "clip_ratio_c": 3.0}
CONFIG = SimpleNamespace(policy_loss_type="orch_rollout_ppo", **BOUNDS)


def loss(logp: torch.Tensor, **more: Any) -> torch.Tensor:
    value: torch.Tensor
    value, _ = rollout_ppo(logp, logp, torch.ones_like(logp), CONFIG, **more)
    return value


def test_masked_tokens_of_the_registered_loss_are_nothing() -> None:
    """Even where SkyRL pads log-probabilities with what no arithmetic survives."""
    logp = torch.tensor([[-0.1, -2.0, -0.7]], requires_grad=True)
    rollout = torch.tensor([[-0.6, -1.2, float("nan")]])
    value = loss(logp, loss_mask=torch.tensor([[1.0, 1.0, 0.0]]), rollout_logprobs=rollout)
    (slope,) = torch.autograd.grad(value, logp)
    assert value.isfinite()
    assert slope.isfinite().all()
    assert slope[0, 2] == 0


def test_the_registered_loss_needs_the_samplers_log_probabilities() -> None:
    with pytest.raises(ValueError, match="logprobs=1"):
        loss(torch.zeros(1, 1))
