"""The mathematics: SkyRL's own functions against the words orch uses for them, and orch's
extensions against SkyRL's functions and closed forms. On the CPU.
"""

from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from backends.skyrl.launch.orch_skyrl import rollout_ppo
from tests.backends.skyrl.cells import VERSIONS
from tests.backends.skyrl.library import compute

pytestmark = [pytest.mark.slow, pytest.mark.thorough]  # in a library's environment


LOGP = [[-0.1, -2.0, -1.0, -0.7], [-3.0, -0.2, -0.9, -1.5]]
OLD = [[-0.6, -1.2, -1.0, -0.8], [-1.0, -0.9, -0.7, -9.0]]
ADVANTAGES = [[0.5, 0.5, 0.5, 0.5], [-0.8, -0.8, -0.8, -0.8]]
MASK = [[1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0]]


def close(left: object, right: object) -> bool:
    a, b = torch.as_tensor(left).double(), torch.as_tensor(right).double()
    return a.shape == b.shape and torch.allclose(a, b, rtol=2e-5, atol=2e-6)


def config(**options: Any) -> dict[str, Any]:
    return {
        "policy_loss_type": "regular",
        "eps_clip_low": 0.2,
        "eps_clip_high": 0.3,
        "clip_ratio_c": 3.0,
        **options,
    }


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("regular", "orch_rollout_ppo"), ("dual_clip", "orch_rollout_dual_clip")],
)
def test_the_registered_loss_is_skyrls_with_the_ratio_to_the_sampling_policy(
    version: str, theirs: str, ours: str
) -> None:
    answer = answers(version)[theirs]
    logp = torch.tensor(LOGP, requires_grad=True)
    elsewhere = torch.zeros_like(logp)  # what SkyRL would call old must not matter
    value, metrics = rollout_ppo(
        logp,
        elsewhere,
        torch.tensor(ADVANTAGES),
        SimpleNamespace(**config(policy_loss_type=ours)),
        loss_mask=torch.tensor(MASK),
        rollout_logprobs=torch.tensor(OLD),
    )
    (slope,) = torch.autograd.grad(value, logp)
    assert close(answer["value"], value)
    assert close(answer["slope"], slope)
    assert 0 < metrics["clip_ratio"] < 1


def test_masked_tokens_of_the_registered_loss_are_nothing() -> None:
    """Even where SkyRL pads log-probabilities with what no arithmetic survives."""
    logp = torch.tensor(LOGP, requires_grad=True)
    rollout = torch.tensor(OLD).masked_fill(torch.tensor(MASK) == 0, float("nan"))
    value, _ = rollout_ppo(
        logp,
        logp,
        torch.tensor(ADVANTAGES),
        SimpleNamespace(**config(policy_loss_type="orch_rollout_ppo")),
        loss_mask=torch.tensor(MASK),
        rollout_logprobs=rollout,
    )
    (slope,) = torch.autograd.grad(value, logp)
    assert value.isfinite()
    assert slope.isfinite().all()
    assert slope[0, 3] == 0


def test_the_registered_loss_needs_the_samplers_log_probabilities() -> None:
    with pytest.raises(ValueError, match="logprobs=1"):
        rollout_ppo(
            torch.zeros(1, 1),
            torch.zeros(1, 1),
            torch.ones(1, 1),
            SimpleNamespace(**config(policy_loss_type="orch_rollout_ppo")),
        )


# ---------------------------------------------------------------- what SkyRL is asked

_LOSS = {"call": "loss", "logp": LOGP, "old": OLD, "advantages": ADVANTAGES, "mask": MASK}
QUESTIONS: dict[str, dict[str, Any]] = {
    "regular": {**_LOSS, "config": config()},
    "dual_clip": {**_LOSS, "config": config(policy_loss_type="dual_clip")},
}


@cache
def answers(version: str) -> dict[str, Any]:
    """All of them in one process: torch is slow to start."""
    return dict(zip(QUESTIONS, compute(version, list(QUESTIONS.values())), strict=True))
