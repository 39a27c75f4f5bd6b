"""Logs of the libraries as they were recorded, under orch's names; verl's own cases are in
verl/test_metrics.py and Prime-RL's in prime_rl/test_disk.py."""

import json
import math
from pathlib import Path

import pytest

from backends.openrlhf.flags import VERSIONS, argv
from orchestrator import plugins
from orchestrator.errors import LogFault
from orchestrator.metrics.names import VALIDATION
from tests.replay import recorded

EVERY = {
    *("train/reward_mean", "train/entropy", "train/grad_norm", "train/learning_rate"),
    *("time/step_seconds", VALIDATION),
}
CLIPPED = {*EVERY, "train/clip_fraction", "train/kl_term", "rollout/response_tokens"}
LOGGED = {
    "verl": {
        *(CLIPPED | {"train/policy_loss", "train/shaped_reward_mean", "train/kl_reference"}),
        *("rollout/cut_share", "rollout/staleness_mean", "rollout/staleness_max"),
        *("rollout/mismatch_kl", "rollout/mismatch_chi2"),
    },
    "trl": CLIPPED | {"rollout/cut_share"},
    "openrlhf": CLIPPED | {"train/policy_loss", "train/kl_reference_per_token"},
    "skyrl": CLIPPED | {"train/policy_loss", "train/shaped_reward_mean"},
    "prime_rl": EVERY | {"rollout/staleness_mean", "rollout/mismatch_kl"},
}
PLANTED = {
    "train/reward_mean": "reward",
    "train/entropy": "entropy",
    "train/grad_norm": "gradient",
    "train/kl_term": "kl",
    "rollout/response_tokens": "length",
    VALIDATION: "validation",
}


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    return tmp_path / "a 'b'\nµ" / "attempts" / "1"


@pytest.mark.parametrize("library", recorded.LIBRARIES)
def test_what_a_library_logs_has_orchs_names(library: str, attempt: Path) -> None:
    """Steps of four train steps, in those libraries that count rollout batches."""
    updates = 1 if library in ("trl", "prime_rl") else 4
    rows: dict[int, dict[str, float | None]] = {
        n: {"reward": 0.5, "entropy": 1.0 + n, "gradient": 0.25, "length": 400.0, "kl": n / 100}
        for n in (1, 2)
    }
    rows[2] |= {"validation": 0.25, "gradient": None}
    recorded.attempt(library, attempt, rows, updates)
    points = list(plugins.load(library).read_metrics(attempt))
    read = {n: {"": 0.0} for n in rows}
    for point in points:
        read[point.step // updates] |= point.values
    assert set(read[1]) | {VALIDATION} == set(read[2]) == LOGGED[library] | {""}
    assert sorted({point.step for point in points}) == [updates, 2 * updates]
    if library != "verl":  # its file has no clock
        begun, seconds = recorded.FIRST_SECOND, recorded.STEP_SECONDS
        assert [p.time for p in points] == [begun + seconds * p.step // updates for p in points]
    for n, row in rows.items():
        for name in PLANTED.keys() & read[n].keys():
            value = row[PLANTED[name]]
            expected = math.nan if value is None else value
            assert read[n][name] == pytest.approx(expected, rel=1e-6, nan_ok=True), name


@pytest.mark.parametrize("library", recorded.LIBRARIES)
def test_a_log_of_another_release_is_told(library: str, attempt: Path) -> None:
    """A log without its reward is not read as one with another; first what can be read of it."""
    rows = {n: {"reward": 0.5, "entropy": 1.0} for n in range(1, 30)}
    recorded.attempt(library, attempt, rows)
    for path in recorded.logs_of(library, attempt):
        content = path.read_bytes().replace(b"eward", b"ewarD")
        path.write_bytes(content.replace(b"critic/score", b"critic/scorE"))
    points = plugins.load(library).read_metrics(attempt)
    assert next(points).values
    with pytest.raises(LogFault) as raised:
        list(points)
    assert recorded.record(library).release in str(raised.value)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_a_kl_of_zero_is_one_where_openrlhf_has_a_reference_policy(
    attempt: Path, beta: float, version: str
) -> None:
    recorded.attempt("openrlhf", attempt, {1: {"reward": 0.375, "kl": 0.0}})
    plan = attempt.parents[1] / "plan"
    plan.mkdir()
    launch = {"argv": argv({"algo.kl.init_coef": beta}, version)}
    (plan / "plan.json").write_text(json.dumps(launch))
    (only,) = plugins.load("openrlhf").read_metrics(attempt)
    terms = ("train/kl_term", "train/kl_reference_per_token")
    assert [name in only.values for name in terms] == [bool(beta)] * 2
    assert only.values["train/reward_mean"] == 0.375


def test_a_run_of_skyrl_that_goes_on_logs_an_evaluation_first(attempt: Path) -> None:
    """At the step of its checkpoint, and nothing else until it has trained: no fault."""
    recorded.attempt("skyrl", attempt, {4: {"validation": 0.5}})
    (only,) = plugins.load("skyrl").read_metrics(attempt)
    assert only.values == {VALIDATION: 0.5}


def test_the_kl_of_trls_rlootrainer_is_of_responses(attempt: Path) -> None:
    """RLOO logs k1 of tokens; the term is their sum over a response. GRPO's is of tokens."""
    recorded.attempt("trl", attempt, {1: {"reward": 0.5, "kl": 0.125, "length": 6.0}})
    path = attempt / "trl.jsonl"
    assert '"script": "grpo"' in path.read_text()
    path.write_text(path.read_text().replace('"grpo"', '"rloo"'))
    (only,) = plugins.load("trl").read_metrics(attempt)
    assert only.values["train/kl_reference_per_token"] == 0.125
    assert only.values["train/kl_term"] == 0.75
