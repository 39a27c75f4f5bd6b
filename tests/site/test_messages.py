"""SLURM's words as sentences: what it really said (22.05), and the same of the real cluster."""

import subprocess
from typing import Any

import pytest

from orchestrator.launch.slurm.scheduler import refusal_of, stuck_reason
from tests.cluster import Cluster

FAILED = "sbatch: error: Batch job submission failed:"
POLICY = f"{FAILED} Job violates accounting/QOS policy (job submit limit, user's size and/or time)"
SAID = [  # the real cluster says the others: `test_what_this_slurm_says_today`
    (f"{FAILED} Invalid partition name specified", {"partition": "nope"}, "partition"),
    (f"{FAILED} Invalid account or account/partition combination", {"account": "x"}, "account"),
    (f"{FAILED} Requested node configuration is not available", {"gres": "gpu:a100:5"}, "gres"),
    (f"{FAILED} Requested time limit is invalid", {"time_limit_hours": 99}, "time_limit_hours"),
    (f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{POLICY}", {}, "max_submit_jobs"),
    (POLICY, {}, "qos"),
]


@pytest.mark.parametrize(("words", "options", "field"), SAID)
def test_a_refusal_names_the_field(words: str, options: dict[str, Any], field: str) -> None:
    said = refusal_of(words, options)
    assert said.field == f"site.options.{field}"
    assert f"change site.options.{field}" in said.sentence
    assert not said.passing
    for value in options.values():
        assert f"'{value}'" in said.sentence or field == "gres" or field == "memory_gib"


@pytest.mark.parametrize(
    ("reason", "field"),
    [
        ("PartitionTimeLimit", "time_limit_hours"),
        ("(PartitionConfig)", "partition"),
        ("PartitionNodeLimit", "partition"),
        ("AssocGrpGRESMinutes", "account"),
    ],
)
def test_a_job_that_would_wait_for_ever_says_why(reason: str, field: str) -> None:
    said = stuck_reason(reason, {})
    assert said.field == f"site.options.{field}"


@pytest.mark.parametrize("reason", ["Priority", "Resources", "None", "BeginTime", "Dependency"])
def test_waiting_in_line_is_no_fault(reason: str) -> None:
    assert stuck_reason(reason, {}) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flag", "field"),
    [
        ("--partition=nope", "partition"),
        ("--account=nobody", "account"),
        ("--qos=vip", "qos"),
        ("--gres=gpu:a100:5", "gres"),
        ("--gres=gpu:h100:1", "gres"),
        ("--gres=foo", "gres"),
        ("--time=abc", "time_limit_hours"),
        ("--array=0-2000", "max_array_size"),
        ("--constraint=big", "constraint"),
        ("--mem=900G", "memory_gib"),
        ("--exclude=foo", "exclude"),
        ("--reservation=x", "reservation"),
        ("--nonsense", "extra"),
        ("--licenses=foo", "extra"),
        ("--partition=gpu;rm", "partition"),
    ],
)
def test_what_this_slurm_says_today(slurm: Cluster, flag: str, field: str) -> None:
    argv = ["sbatch", flag, "--wrap=true"]
    done = subprocess.run(
        argv, env=slurm.env, cwd=slurm.base, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode != 0
    assert refusal_of(done.stderr, {}).field == f"site.options.{field}"
