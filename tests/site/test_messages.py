"""SLURM's words as sentences: what it really said (22.05), and the same of the real cluster."""

import subprocess
from typing import Any

import pytest

from orchestrator.launch.slurm.scheduler import refusal_of, stuck_reason
from tests.cluster import Cluster

FAILED = "sbatch: error: Batch job submission failed:"

SAID = [
    (
        (
            "sbatch: error: invalid partition specified: nope\n"
            "sbatch: error: Batch job submission failed: Invalid partition name specified"
        ),
        {"partition": "nope"},
        "partition",
    ),
    (
        (
            "sbatch: error: Batch job submission failed: Invalid account or account/partition "
            "combination"
            " specified"
        ),
        {"account": "nobody"},
        "account",
    ),
    (f"{FAILED} Invalid qos specification", {"qos": "vip"}, "qos"),
    (
        "sbatch: error: Batch job submission failed: Requested node configuration is not available",
        {"gres": "gpu:a100:5"},
        "gres",
    ),
    ("sbatch: error: Invalid generic resource (gres) specification", {"gres": "foo"}, "gres"),
    ("sbatch: error: Invalid --time specification", {}, "time_limit_hours"),
    (
        (
            "sbatch: error: Batch job submission failed: Requested time limit is invalid "
            "(missing or "
            "exceeds some limit)"
        ),
        {"time_limit_hours": 99},
        "time_limit_hours",
    ),
    (
        "sbatch: error: Batch job submission failed: Invalid job array specification",
        {},
        "max_array_size",
    ),
    (
        "sbatch: error: Batch job submission failed: Invalid feature specification",
        {"constraint": "big"},
        "constraint",
    ),
    (
        (
            "sbatch: error: Memory specification can not be satisfied\n"
            f"{FAILED} Requested node configuration is not available"
        ),
        {"memory_gib": 900},
        "memory_gib",
    ),
    (
        "sbatch: error: Batch job submission failed: Invalid node name specified",
        {"exclude": "foo"},
        "exclude",
    ),
    (
        "sbatch: error: Batch job submission failed: Requested reservation is invalid",
        {"reservation": "x"},
        "reservation",
    ),
    (
        "sbatch: unrecognized option '--nonsense'\nTry \"sbatch --help\" for more information",
        {},
        "extra",
    ),
    ("sbatch: error: Batch job submission failed: Invalid license specification", {}, "extra"),
    (
        (
            "sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission "
            "failed: Job "
            "violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
        ),
        {},
        "max_submit_jobs",
    ),
    (
        f"{FAILED} Job violates accounting/QOS policy (job submit limit, user's size and/or time)",
        {},
        "qos",
    ),
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
    assert said is not None
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
