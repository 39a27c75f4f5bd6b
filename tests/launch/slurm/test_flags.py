"""The options of a site reach every job that orch starts, by the same flags."""

import shlex

from orchestrator.launch.slurm.script import EVALUATE, ArrayJob, ArrayResources, text
from orchestrator.site.probe import _srun
from orchestrator.spec.site_options import SlurmOptions, slurm_options

OPTIONS = {
    "partition": "gpu",
    "account": "lab",
    "qos": "long",
    "constraint": "a100&nvlink",
    "reservation": "may",
    "exclude": "n[1-2]",
    "extra": ["--mail-type=END", "--no-kill"],
}
SITE = {
    "--partition=gpu",
    "--account=lab",
    "--qos=long",
    "--constraint=a100&nvlink",
    "--reservation=may",
    "--exclude=n[1-2]",
    "--mail-type=END",
    "--no-kill",
}


def of_script(script: str) -> set[str]:
    head = "#SBATCH "
    lines = [line for line in script.splitlines() if line.startswith(head)]
    return {flag for line in lines for flag in shlex.split(line.removeprefix(head))}


def jobs(options: SlurmOptions) -> dict[str, set[str]]:
    """Kind of job -> its flags."""
    training = ArrayJob("x", 1, ArrayResources())
    evaluation = training._replace(program=EVALUATE, after="7")
    return {
        "training": of_script(text(training, options)),
        "evaluation": of_script(text(evaluation, options)),
        "probe": set(_srun(options, 0)),
    }


def test_every_job_has_the_same_flags_of_the_site() -> None:
    without = jobs(slurm_options({}))
    for kind, flags in jobs(slurm_options(OPTIONS)).items():
        assert flags - without[kind] == SITE, kind


def test_srun_gets_no_flag_that_only_sbatch_has() -> None:
    found = jobs(slurm_options({"extra": ["--get-user-env", "--hint=nomultithread"]}))
    assert "--get-user-env" in found["training"]
    assert "--get-user-env" not in found["probe"]
    assert "--hint=nomultithread" in found["probe"]
