"""Prime-RL's logs, in the formats of its releases."""

import json
from pathlib import Path

import pytest

from backends.prime_rl import BACKEND
from tests.replay import recorded


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    folder = tmp_path / "attempts" / "1"
    (folder / "logs").mkdir(parents=True)
    (folder / "job.json").write_text(json.dumps({"started": 1000.0}))
    return folder


def test_a_clock_passes_midnight(tmp_path: Path) -> None:
    """0.5.0 logs hours, minutes and seconds; what else it logs is read in tests/backends."""
    own, begun, seconds = tmp_path / "attempts" / "1", recorded.FIRST_SECOND, recorded.STEP_SECONDS
    last = int((86_400 - begun % 86_400) // seconds)
    recorded.attempt("prime_rl", own, {n: {"reward": 0.5} for n in range(last - 1, last + 3)})
    assert "23:59:" in (own / "logs" / "trainer.stdout").read_text()
    times = [point.time for point in BACKEND.read_metrics(own)]
    assert times == [begun + seconds * n for n in (1, 2, 3, 4)], "from the start of the attempt"


ROWS = [
    ("trainer", {"step": 1, "time": 1010.0, "perf/throughput": 9.0}),
    ("trainer", {"step": 1, "time": 1011.0, "optim/lr": 1e-6, "optim/grad_norm": 0.25}),
    (
        "trainer",
        {
            "step": 1,
            "time": 1012.0,
            "entropy/all/mean": 0.5,
            "clip_fraction/mean": 0.0,
            "mismatch_kl/all/mean": 0.001,
            "loss/mean": 0.1,
        },
    ),
    ("trainer", {"step": 1, "time": 1013.0, "time/step": 30.0}),
    (
        "orchestrator",
        {
            "step": 1,
            "time": 1009.0,
            "train/agg/all/agent/reward/mean": 0.1,
            "train/agg/effective/agent/reward/mean": 0.375,
            "time/step": 99.0,
            "train/agg/effective/num_output_tokens/mean": 200.0,
            "train/train/effective/agent/reward/mean": 7.0,
        },
    ),
    ("orchestrator", {"step": 0, "time": 1000.0, "eval/x/agent/reward/mean": 1.0}),
    ("trainer", {"step": 2, "time": 1040.0, "optim/lr": 2e-6}),
]
CURRENT_LINE = (
    "\x1b[2m{clock}\x1b[0m \x1b[32m\x1b[1mSUCCESS\x1b[0m Step {step} |   30.00s | Reward 0.3750 |"
    " Trainable 32/32 (100.0%) | Turns 1.0 | Branches 1.0 | Max Off-Policy 2 | Error 0.0% |"
    " Truncation 0.0%\n"
)


def test_rows_of_0_8_0_make_one_point_a_train_step(attempt: Path) -> None:
    for name, row in ROWS:
        with (attempt / "logs" / f"{name}.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
    torn = json.dumps({"step": 3, "time": 1.0, "optim/lr": 3.0})
    with (attempt / "logs" / "trainer.jsonl").open("a") as file:
        file.write("[]\nnot json\n" + torn)
    (attempt / "logs" / "orchestrator.log").write_text(
        CURRENT_LINE.format(clock="10:00:00", step=1)
    )
    first, second = BACKEND.read_metrics(attempt)
    assert (first.step, first.time) == (1, 1009.0)
    assert first.values == {
        "train/reward_mean": 0.375,
        "rollout/response_tokens": 200.0,
        "train/entropy": 0.5,
        "rollout/staleness_max": 2.0,
        "train/grad_norm": 0.25,
        "train/learning_rate": 1e-6,
        "train/clip_fraction": 0.0,
        "rollout/mismatch_kl": 0.001,
        "time/step_seconds": 30.0,
    }
    assert (second.step, second.values) == (2, {"train/learning_rate": 2e-6})


EVALUATIONS = (
    "\x1b[2m10:00:00\x1b[0m \x1b[1m   INFO\x1b[0m Running evals for checkpoint step 0\n"
    "\x1b[2m10:00:10\x1b[0m \x1b[32m\x1b[1mSUCCESS\x1b[0m Evaluated validation in 9.31s "
    "(Avg@1=0.1250, Pass@1: 0.1250, No-response: 0.0%, "
    "Completion Length: 9.00 (±1.00, ∈[4.00, 12.00]), Truncated: 0.0%)\n"
    "10:01:00    INFO Running evals for interval step 10 (current ckpt_step=12)\n"
    "10:01:09 SUCCESS Evaluated validation in 9.31s (Avg@1=0.5000, No-response: 0.0%)\n"
    "10:02:00    INFO Running final evals\n"
    "10:02:09 SUCCESS Evaluated validation in 9.31s (Avg@1=0.7500, No-response: 0.0%)\n"
)
"""As orchestrator.py and eval_utils.py of 0.5.0 write them."""


def test_an_evaluation_is_of_the_policy_that_the_log_names(attempt: Path) -> None:
    """The final one of 0.5.0 names none. 0.8.0's row is of the oldest policy that sampled."""
    log = attempt / "logs" / "orchestrator.stdout"
    log.write_text(EVALUATIONS)
    points = [(p.step, p.time, p.values) for p in BACKEND.read_metrics(attempt)]
    assert points == [
        (0, 1010.0, {"eval/validation/mean": 0.125}),
        (12, 1069.0, {"eval/validation/mean": 0.5}),
    ]
    log.unlink()
    row = {
        "step": 20.0,
        "time": 1030.0,
        "eval/validation/all/agent/reward/mean": 0.25,
        "eval/validation/effective/agent/reward/mean": 0.375,
        "eval/validation/policy_version": 19.0,
    }
    (attempt / "logs" / "orchestrator.jsonl").write_text(json.dumps(row) + "\n")
    (point,) = BACKEND.read_metrics(attempt)
    assert (point.step, point.values) == (19, {"eval/validation/mean": 0.375})
