"""Event files, read under orch's names."""

from pathlib import Path

import pytest

from backends.skyrl import BACKEND
from backends.skyrl.metrics import canonical
from orchestrator.records import MetricPoint
from tests.backends.events import write_events

STEP = {
    "reward/avg_raw_reward": 0.375,
    "reward/avg_pass_at_5": 0.5,
    "loss/avg_final_rewards": 0.25,
    "loss/avg_kl": -0.0625,
    "loss/kl_loss_coef": 0.05,
    "policy/policy_loss": -0.5,
    "policy/policy_entropy": 0.75,
    "policy/grad_norm": 2.0,
    "policy/policy_lr": 1e-6,
    "policy/loss_metrics/clip_ratio": 0.125,
    "generate/avg_num_tokens": 320.5,
    "async/staleness_mean": 3.5,
    "async/staleness_max": 9,
    "timing/step": 64.0,
    "trainer/epoch": 0,
    "trainer/global_step": 1,
}
EVALUATED = {"eval/all/avg_score": 0.5, "eval/math/pass_at_4": 0.75}
RUN = [(0, EVALUATED), (1, STEP), (2, {**STEP, "policy/grad_norm": float("inf"), **EVALUATED})]


@pytest.fixture(scope="module")
def attempt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("an attempt's ünï")
    write_events(folder / "tensorboard-x4" / "events.out.tfevents.1", RUN)
    return folder


def points(attempt: Path) -> list[MetricPoint]:
    return list(BACKEND.read_metrics(attempt))


def test_tensorboards_files_are_read(attempt: Path) -> None:
    first, second, third = points(attempt)
    assert [first.step, second.step, third.step] == [0, 4, 8]
    assert 1_700_000_000 < first.time < second.time < third.time
    assert first.values == {"eval/validation/mean": 0.5}
    assert second.values["train/reward_mean"] == 0.375
    assert second.values["train/kl_term"] == -0.0625
    assert second.values["rollout/response_tokens"] == 320.5
    assert second.values["rollout/staleness_max"] == 9
    assert second.values["train/learning_rate"] == pytest.approx(1e-6)
    assert "train/grad_norm" in second.values
    assert third.values["train/grad_norm"] == float("inf"), "what is not finite is kept"
    assert third.values["eval/validation/mean"] == 0.5


def test_a_run_that_goes_on_logs_an_evaluation_first(tmp_path: Path) -> None:
    """At the step of its checkpoint, and nothing else until it has trained: no fault."""
    evaluated = {**EVALUATED, "timing/eval_generate": 1.5}
    log = tmp_path / "tensorboard-x1" / "events.out.tfevents.1"
    write_events(log, [(4, evaluated), (5, {"timing/save": 2.0})])
    (only,) = points(tmp_path)
    assert only.values == {"eval/validation/mean": 0.5}


def test_names_orch_has_not_are_left_out() -> None:
    assert canonical("loss/avg_kl_max") is None
    assert canonical("eval/all/mean_positive_reward") is None
