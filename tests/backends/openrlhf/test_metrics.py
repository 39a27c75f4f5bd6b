"""Reading event files."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from backends.openrlhf import BACKEND
from backends.openrlhf.flags import VERSIONS, argv
from orchestrator.metrics.names import is_canonical
from orchestrator.records import MetricPoint
from tests.backends.events import write_events

STATUS = {
    "policy_loss": -0.125,
    "actor_lr": 1e-6,
    "actor_grad_norm": 0.5,
    "kl": 0.25,
    "logprobs_diff": -0.125,
    "ppo_clip_ratio": 0.0,
    "return": 0.5,
    "response_length": 300.0,
    "entropy_loss": 0.75,
    "timing/make_experience": 10.0,
    "rollout/reward_mean": 0.375,
    "rollout/response_length_mean": 256.0,
    "timing/generation": 20.0,
    "timing/step_total": 64.0,
}
STEPS: list[Any] = [
    [1, STATUS],
    [2, {**STATUS, "policy_loss": math.inf, "rollout/reward_mean": 0.5}],
    [
        3,
        {**STATUS, "kl": 0.0, "logprobs_diff": 0.0},
        {"eval_default_pass1": 0.4375, "eval_response_length_mean": 300.0},
    ],
]


@pytest.fixture(scope="module")
def attempt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An attempt of a cell with four minibatches a batch, as it lies on disk."""
    folder = tmp_path_factory.mktemp("a 'b'\nµ")
    tagged = [
        (step, {f"{kind}/{name}": value for name, value in values.items()})
        for step, *parts in STEPS
        for kind, values in zip(("train", "eval"), parts, strict=False)
    ]
    write_events(folder / "tensorboard/global_step-x4/events.out.tfevents.1", tagged)
    return folder


def check(points: list[MetricPoint]) -> None:
    assert [p.step for p in points] == [4, 8, 12, 12]
    first, second, third, validated = (p.values for p in points)
    assert validated == {"eval/validation/mean": pytest.approx(0.4375)}
    assert first == pytest.approx(
        {
            "train/policy_loss": -0.125,
            "train/learning_rate": 1e-6,
            "train/grad_norm": 0.5,
            "train/kl_term": 0.25,
            "train/kl_reference_per_token": -0.125,
            "train/clip_fraction": 0.0,
            "train/entropy": 0.75,
            "train/reward_mean": 0.375,
            "rollout/response_tokens": 256.0,
            "time/step_seconds": 16.0,
        }
    )
    assert all(is_canonical(name) for name in first)
    assert second["train/policy_loss"] == math.inf
    assert second["train/reward_mean"] == 0.5
    assert third["train/kl_term"] == third["train/kl_reference_per_token"] == 0, "on policy"


def test_event_files(attempt: Path) -> None:
    points = list(BACKEND.read_metrics(attempt))
    check(points)
    assert 1_700_000_000 < points[0].time < points[1].time < 1_700_000_100


@pytest.mark.parametrize(
    ("beta", "version"),
    [(0.0, VERSIONS[0]), (0.0, VERSIONS[1]), (0.1, VERSIONS[0]), (0.1, VERSIONS[1])],
)
def test_a_kl_of_zero_is_one_where_the_launch_has_a_reference_policy(
    attempt: Path, tmp_path: Path, beta: float, version: str
) -> None:
    copy = tmp_path / "attempts" / "1"
    shutil.copytree(attempt, copy)
    launch = argv({"algo.kl.init_coef": beta}, version)
    (tmp_path / "plan").mkdir()
    (tmp_path / "plan" / "plan.json").write_text(json.dumps({"argv": launch}))
    last = list(BACKEND.read_metrics(copy))[2].values
    assert ("train/kl_term" in last, "train/kl_reference_per_token" in last) == (bool(beta),) * 2
    assert last["train/reward_mean"] == 0.375
