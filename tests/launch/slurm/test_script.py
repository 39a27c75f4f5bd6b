"""The script that sbatch gets, by submitit."""

import importlib.util
import subprocess
import sys
from pathlib import Path

from orchestrator.launch.slurm.script import EVALUATE, ArrayJob, ArrayResources, argv, text
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


def test_submitit_is_the_release_that_orch_knows() -> None:
    """One private function of it writes the script: see docs/decisions.md."""
    import inspect

    from submitit.slurm.slurm import SlurmExecutor, _make_sbatch_string

    passed = {
        *("partition", "account", "qos", "constraint", "gres", "nodes", "cpus_per_task", "time"),
        *("mem", "exclude", "dependency", "comment", "use_srun", "additional_parameters"),
    }
    assert passed <= SlurmExecutor._valid_parameters()
    taken = inspect.signature(_make_sbatch_string).parameters
    assert passed | {"command", "folder", "job_name", "wckey"} <= taken.keys()


def test_what_must_end_before_is_part_of_the_dependency() -> None:
    job = ArrayJob("x", 2, ArrayResources(), throttle=1, after_any=("7", "9"), comment="exp: a, 2")
    found = flags(text(job, slurm_options({})))
    assert found["dependency"] == "afterany:7:9"
    assert found["comment"] == "'exp: a, 2'"
    assert "kill-on-invalid-dep" not in found, "the arrays before may fail"


def test_an_evaluation_waits_for_its_own_cell_and_dies_with_it() -> None:
    found = flags(text(ArrayJob("x", 2, ArrayResources(), after="17"), slurm_options({})))
    assert found["dependency"] == "aftercorr:17"
    assert found["kill-on-invalid-dep"] == "yes"
    assert "gres" not in found


def test_the_script_is_shell_that_names_no_folder(tmp_path: Path) -> None:
    script = text(ArrayJob("x", 1, ArrayResources()), slurm_options({}))
    assert subprocess.run(["/bin/bash", "-n"], input=script, text=True, check=False).returncode == 0
    assert f"exec {sys.executable} -P -m orchestrator.launch.slurm.task" in script
    folder = tmp_path / "a b" / "$c"
    folder.mkdir(parents=True)
    (folder / "job.sh").write_text(script, encoding="utf-8")
    assert argv(folder)[2] == f"--chdir={folder}", "folders are arguments, never shell"
    assert "--array=0-0" in argv(folder)


def test_an_evaluation_is_a_program_of_its_own_named_and_not_imported() -> None:
    job = ArrayJob("x", 1, ArrayResources(), program=EVALUATE)
    assert f"exec {sys.executable} -P -m {EVALUATE}" in text(job, slurm_options({}))
    assert importlib.util.find_spec(EVALUATE) is not None
