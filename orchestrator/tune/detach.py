"""The controller as a small job of its own, for clusters where nothing may live on a login node."""

import math
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from orchestrator.errors import EnvironmentFault
from orchestrator.files import write_text
from orchestrator.launch.slurm import scheduler
from orchestrator.launch.slurm.options import SlurmOptions
from orchestrator.tune.journal import Journal

MEMORY_GIB = 4
STOP_SECONDS = 60
"""How long before its time limit it is told to stop asking."""


def detach(arguments: Sequence[str], journal: Journal, options: SlurmOptions) -> tuple[str, Path]:
    """Submits `orch ARGUMENTS` from this folder; the job's id and the file of its words.

    Raises EnvironmentFault where SLURM refuses or does not answer.
    """
    script, log = journal.path / "controller.sh", journal.path / "controller.log"
    write_text(script, text(arguments, journal.path.name, log, options))
    try:
        job = scheduler.call(["sbatch", "--parsable", f"--chdir={Path.cwd()}", str(script)])
    except (scheduler.Away, scheduler.Refused) as error:
        raise EnvironmentFault(
            f"the controller could not be submitted: {error}. Nothing of the search has begun; "
            "without --submit it runs here, in tmux for instance"
        ) from error
    return job.strip().partition(";")[0], log


def text(arguments: Sequence[str], name: str, log: Path, options: SlurmOptions) -> str:
    """The script: one core. What it submits must not inherit what SLURM told it of itself."""
    flags = {
        "job-name": f"orch-tune-{name}", "output": "/dev/null", "error": "/dev/null",
        "ntasks": 1, "cpus-per-task": 1, "mem": f"{MEMORY_GIB}G",
        "time": max(1, math.ceil(options.time_limit_hours * 60)),
        "signal": f"B:TERM@{STOP_SECONDS}", "partition": options.partition,
        "account": options.account, "qos": options.qos,
    }  # fmt: skip
    lines = [f"#SBATCH --{flag}={value}" for flag, value in flags.items() if value is not None]
    command = shlex.join([options.python or sys.executable, "-m", "orchestrator", *arguments])
    return "\n".join([
        "#!/bin/bash", *lines, "#SBATCH --requeue", f"exec >> {shlex.quote(str(log))} 2>&1",
        'for name in ${!SLURM_*} ${!SBATCH_*}; do [ "$name" = SLURM_CONF ] || unset "$name"; done',
        f"exec {command}", "",
    ])  # fmt: skip
