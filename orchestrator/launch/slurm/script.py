"""Write the batch script of one array with submitit, and the argv of its sbatch."""

import math
import shlex
import sys
from collections.abc import Sequence
from typing import NamedTuple

from orchestrator.records import Cell
from orchestrator.spec.site_options import SlurmOptions

EVALUATE = "orchestrator.runs.evaluation_task"
"""The program that exports and scores a trained cell. Evaluation is above launching: it is named
here and never imported."""


class ArrayResources(NamedTuple):
    """Resources shared by every task of one job array."""

    num_nodes: int = 1
    gpus_per_node: int = 0


class ArrayJob(NamedTuple):
    """One array to submit."""

    name: str
    elements: int
    resources: ArrayResources
    throttle: int | None = None
    after: str | None = None
    """Id of the array whose elements these wait for, one by one."""
    exclude: tuple[str, ...] = ()
    program: str = "orchestrator.launch.slurm.task"
    """Module that each element runs, by name."""


def array_resources(cell: Cell) -> ArrayResources:
    """Return a cell's resources: one core of one node if it is embedded, else `resources`."""
    if cell.scale == "micro":
        return ArrayResources()
    return ArrayResources(cell.resources.num_nodes, cell.resources.gpus_per_node)


def text(job: ArrayJob, options: SlurmOptions) -> str:
    """Return the script.

    It names no folder, because sbatch is called in the submission's folder.
    """
    from submitit.slurm.slurm import _make_sbatch_string  # pinned: constraints.txt

    gpus = job.resources.gpus_per_node
    gres = (options.gres or f"gpu:{gpus}") if gpus else None
    cpus = options.cpus_per_task
    if cpus is None:
        cpus = (options.cpus_per_gpu or 0) * gpus or (None if gpus else 1)
    excluded = [*filter(None, [options.exclude]), *job.exclude]
    more: dict[str, object] = {
        "output": "%A_%a.log",
        "error": "%A_%a.log",
        "requeue": True,
        # to the script itself, which is the worker: steps it starts are its own affair
        "signal": f"B:USR1@{options.signal_seconds}",
        "array": f"0-{job.elements - 1}" + (f"%{job.throttle}" if job.throttle else ""),
        "ntasks": job.resources.num_nodes,
        "ntasks-per-node": 1,
    }
    if options.reservation:
        more["reservation"] = options.reservation
    if job.after:
        more["kill-on-invalid-dep"] = "yes"
    for flag in options.extra:
        name, given, value = flag.removeprefix("--").partition("=")
        more[name] = value if given else True
    command = shlex.join([options.python or sys.executable, "-P", "-m", job.program])
    trained = '[ -e "$SLURM_ARRAY_TASK_ID.done" ]'  # by another job: see work_stealing
    script: str = _make_sbatch_string(
        command=f"{trained} || exec {command}",
        folder=".",
        job_name=job.name,
        wckey=None,
        use_srun=False,
        partition=options.partition,
        account=options.account,
        qos=options.qos,
        constraint=options.constraint,
        gres=gres,
        nodes=job.resources.num_nodes,
        cpus_per_task=cpus,
        time=max(1, math.ceil(options.time_limit_hours * 60)),
        mem=f"{math.ceil(options.memory_gib * 1024)}M" if options.memory_gib else None,
        exclude=",".join(excluded) or None,
        dependency=f"aftercorr:{job.after}" if job.after else None,
        additional_parameters=more,
    )
    return script


def argv(folder: str) -> Sequence[str]:
    """Return the sbatch command for the script in a submission's folder."""
    return ("sbatch", "--parsable", f"--chdir={folder}", "job.sh")
