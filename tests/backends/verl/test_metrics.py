import json
import math
import os
from pathlib import Path

import pytest

from backends.verl import BACKEND
from orchestrator.errors import LogFault
from orchestrator.metrics.names import is_canonical
from orchestrator.records import MetricPoint

STEP = {
    "training/global_step": 1,
    "critic/score/mean": 0.5,
    "critic/rewards/mean": 0.2,
    "actor/reward_kl_penalty": 0.03,
    "actor/reward_kl_penalty_coeff": 0.1,
    "actor/pg_loss": -0.01,
    "actor/grad_norm": 1.5,
    "actor/lr": 1e-6,
    "actor/entropy": 0.4,
    "actor/pg_clipfrac": 0.0,
    "response_length/mean": 200.0,
    "timing_s/step": 60.0,
    "timing_s/testing": 10.0,
    "training/off_policy/trajectory_staleness_worst/mean": 1.5,
    "training/off_policy/trajectory_staleness_worst/max": 3,
    "rollout_corr/kl": 0.0011,
    "rollout_corr/k3_kl": 0.001,
    "rollout_corr/chi2_token": 0.002,
    "rollout_corr/rollout_is_eff_sample_size": 0.98,
    "val-core/lighteval/MATH/acc/mean@1": 0.3,
    "val-aux/lighteval/MATH/reward/std@4": 0.1,
}


def attempt(tmp_path: Path, name: str, lines: list[dict[str, object]], tail: str = "") -> Path:
    folder = tmp_path / "a 'b' ü"
    folder.mkdir()
    text = "".join(json.dumps(line) + "\n" for line in lines) + tail
    (folder / name).write_text(text, encoding="utf-8")
    os.utime(folder / name, (1000.0, 1000.0))
    return folder


def test_the_file_logger_under_canonical_names(tmp_path: Path) -> None:
    lines = [
        {"step": 0, "data": {"val-core/math/reward/mean@1": 0.1}},
        {"step": 1, "data": STEP},
        {"step": 2, "data": STEP},
    ]
    folder = attempt(tmp_path, "verl.x1.k1.jsonl", lines)
    first, second, third = BACKEND.read_metrics(folder)
    assert (first.step, dict(first.values)) == (0, {"eval/validation/mean": 0.1})
    assert (second.step, third.step) == (1, 2)
    assert (third.time, second.time, first.time) == (1000.0, 930.0, 860.0)
    values = dict(third.values)
    assert values["train/reward_mean"] == 0.5
    assert values["train/shaped_reward_mean"] == 0.2
    assert values["train/kl_reference"] == pytest.approx(3.0)  # (0.5 - 0.2) / 0.1
    assert values["train/kl_term"] == 0.03
    assert values["train/entropy"] == 0.4
    assert values["time/step_seconds"] == 60.0
    # as compute_offpolicy_metrics and compute_is_metrics of 0.9.1 name them
    names = ("rollout/mismatch_kl", "rollout/mismatch_chi2", "rollout/mismatch_ess")
    assert [values[name] for name in names] == [0.001, 0.002, 0.98]
    assert values["eval/validation/mean"] == 0.3
    assert all(map(is_canonical, values))


def test_a_step_of_verl_is_as_many_train_steps_as_the_files_name_says(tmp_path: Path) -> None:
    folder = attempt(tmp_path, "verl.x4.c4096.jsonl", [{"step": 3, "data": STEP}])
    (point,) = BACKEND.read_metrics(folder)
    assert point.step == 12
    assert point.values["rollout/staleness_mean"] == 6.0
    assert point.values["rollout/staleness_max"] == 12
    assert point.values["train/entropy"] == pytest.approx(0.4 * 4096 / 200)
    assert "train/kl_reference" not in point.values


def test_the_losses_kl_is_the_term_where_both_are_logged(tmp_path: Path) -> None:
    both = {**STEP, "actor/kl_loss": 0.9}
    (point,) = BACKEND.read_metrics(attempt(tmp_path, "verl.x1.jsonl", [{"step": 1, "data": both}]))
    assert point.values["train/kl_term"] == 0.9


def test_a_line_that_is_no_metric_ends_it_and_is_told(tmp_path: Path) -> None:
    lines: list[dict[str, object]] = [{"step": 1, "data": STEP}, {"epoch": 1}]
    folder = attempt(tmp_path, "verl.x1.jsonl", [*lines, {"step": 3, "data": STEP}])
    points = BACKEND.read_metrics(folder)
    assert next(points).step == 1
    with pytest.raises(LogFault, match=r"verl\.x1\.jsonl line 2 is not .* \(of 0\.9\.1, 0\.8\.0\)"):
        next(points)


NAN = "not a number"


def named(point: MetricPoint) -> dict[str, object]:
    """The values of a point, with NaN as a value that equals itself."""
    return {name: NAN if math.isnan(value) else value for name, value in point.values.items()}


CONSOLE = """\
(TaskRunnerV1 pid=2345) Creating file logger at /gone/verl.x2.k1.jsonl
\x1b[36m(TaskRunnerV1 pid=2345)\x1b[0m step:0 - val-core/math/acc/mean@1:np.float64(0.12)
(TaskRunnerV1 pid=2345) something else: step 4
\x1b[36m(TaskRunnerV1 pid=2345)\x1b[0m step:1 - critic/score/mean:np.float64(0.61) - \
actor/pg_loss:-0.0012 - actor/grad_norm:nan - training/global_step:1 - actor/lr:1e-06 - \
training/epoch:np.int32(0) - timing_s/step:12.5
(TaskRunnerV1 pid=2345) step:2 - critic/score/mean:0.7"""


def test_the_console_where_the_file_is_missing(tmp_path: Path) -> None:
    (tmp_path / "stdout").write_text(CONSOLE, encoding="utf-8")
    first, second = BACKEND.read_metrics(tmp_path)
    assert (first.step, dict(first.values)) == (0, {"eval/validation/mean": 0.12})
    assert second.step == 2
    assert named(second) == {
        "train/reward_mean": 0.61,
        "train/policy_loss": -0.0012,
        "train/grad_norm": NAN,
        "train/learning_rate": 1e-6,
        "time/step_seconds": 12.5,
    }
