"""A site file's options: plain values, known names, nothing a shell could act on."""

import re
from pathlib import Path

import yaml
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.launch.slurm.script import ArrayJob, ArrayResources, given_size, text
from orchestrator.spec.site_options import (
    EnvironmentEntry,
    EvaluationJob,
    SlurmOptions,
    faults,
    slurm_options,
)

META = " ;&|$`\"'\\<>\n\t*?~#{}"


@given(
    st.sampled_from(["partition", "account", "qos", "reservation", "gres", "exclude", "python"]),
    st.sampled_from(META),
    st.integers(0, 3),
)
def test_no_field_takes_what_a_shell_acts_on(field: str, character: str, at: int) -> None:
    plain = "/gpu"[: at + 1] if field == "python" else "gpu"[:at]
    value = f"{plain}{character}x"
    told = [sentence for sentence, _ in faults({field: value})]
    assert len(told) == 1
    assert f"site.options.{field}" in told[0]


def test_the_sites_page_describes_every_field() -> None:
    """Its examples hold them all, and are options that orch takes."""
    page = (Path(__file__).parents[3] / "docs" / "slurm.md").read_text()
    blocks = [yaml.safe_load(b) for b in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    options = [block["options"] for block in blocks if "options" in block]
    assert [list(faults(each)) for each in options] == [[]] * len(options)
    described = {name for each in options for name in each} | set(re.findall(r"`(\w+)", page))
    assert set(SlurmOptions.model_fields) <= described
    entries = [e for each in options for e in each.get("environments", {}).values()]
    assert set(EnvironmentEntry.model_fields) == {name for entry in entries for name in entry}
    (evaluation,) = (each["evaluation"] for each in options if "evaluation" in each)
    assert set(EvaluationJob.model_fields) == set(evaluation)


def flags(script: str) -> dict[str, str]:
    lines = [line.removeprefix("#SBATCH --") for line in script.splitlines() if "#SBATCH" in line]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def test_every_option_reaches_sbatch() -> None:
    options = slurm_options(
        {
            "partition": "gpu",
            "account": "lab",
            "qos": "long",
            "constraint": "a100&nvlink",
            "reservation": "may",
            "gres": "gpu:a100:4",
            "exclude": "n[1-2]",
            "time_limit_hours": 1.5,
            "memory_gib": 100,
            "cpus_per_gpu": 8,
            "signal_seconds": 300,
            "max_running": 3,
            "extra": ["--mail-type=END", "--exclusive"],
        }
    )
    shape = ArrayResources(2, 4)
    job = ArrayJob("orch-x-1", 7, shape, given_size(options, shape), options, ("bad1",))
    found = flags(text(job))
    assert found == {
        "partition": "gpu",
        "account": "lab",
        "qos": "long",
        "constraint": "'a100&nvlink'",
        "reservation": "may",
        "gres": "gpu:a100:4",
        "exclude": "'n[1-2],bad1'",
        "time": "90",
        "mem": "102400M",
        "cpus-per-task": "32",
        "signal": "B:USR1@300",
        "mail-type": "END",
        "exclusive": "",
        "array": "0-6%3",
        "nodes": "2",
        "ntasks": "2",
        "ntasks-per-node": "1",
        "job-name": "orch-x-1",
        "output": "%A_%a.log",
        "error": "%A_%a.log",
        "requeue": "",
        "open-mode": "append",
    }
