"""The script that sbatch gets, by submitit."""

from orchestrator.launch.slurm.script import ArrayJob, ArrayResources, text
from orchestrator.spec.site_options import slurm_options


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
            "extra": ["--mail-type=END", "--exclusive"],
        }
    )
    job = ArrayJob("orch-x-1", 7, ArrayResources(2, 4), throttle=3, exclude=("bad1",))
    found = flags(text(job, options))
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
