"""The batch script of one array, the resources of its jobs, and the argv of its sbatch.

submitit writes the script. The part of a node that a job takes follows from its GPUs: CPUs and
memory in their share, or the whole node.
"""

import math
import os
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from orchestrator.launch.launcher import PlannedJob
from orchestrator.launch.slurm import cluster
from orchestrator.launch.slurm.cluster import Cluster, ClusterNode
from orchestrator.launch.slurm.flags import CPU_FLAGS, MEMORY_FLAGS, extra_flags, site_flags
from orchestrator.records import Cell
from orchestrator.spec.node_gpus import parse_gres
from orchestrator.spec.site_options import SlurmOptions

EVALUATE = "orchestrator.runs.evaluation_task"
"""The program that exports and scores a trained cell. Evaluation is above launching: it is named
here and never imported."""
CPUS_PER_GPU = 4
"""CPUs for each GPU that trainers of language models take: an engine of vLLM, its tokenizer, the
data, and the actors of Ray that wait for a CPU each. With fewer they start, and are slow."""


class ArrayResources(NamedTuple):
    """Resources shared by every task of one job array."""

    num_nodes: int = 1
    gpus_per_node: int = 0


class JobSize(NamedTuple):
    """The part of each of its nodes that one job takes, in addition to GPUs."""

    cpus: int | None = None
    """CPUs of each node; None: the cluster's default."""
    memory_mib: int | None = None
    """Memory of each node; None: the cluster's default; 0: all memory of the node."""
    exclusive: bool = False
    """True: no other job may run on the node."""


class ArrayJob(NamedTuple):
    """One array to submit."""

    name: str
    elements: int
    resources: ArrayResources
    size: JobSize
    options: SlurmOptions
    exclude: tuple[str, ...] = ()
    """Nodes not to use, beside those of the options."""
    after: str | None = None
    """Id of the array for whose elements the elements of this array wait, one by one."""
    program: str = "orchestrator.launch.slurm.task"
    """Module that each element runs, by name."""


def array_resources(cell: Cell) -> ArrayResources:
    """Return a cell's resources: one core of one node if it is embedded, else `resources`."""
    if cell.scale == "micro":
        return ArrayResources()
    return ArrayResources(cell.resources.num_nodes, cell.resources.gpus_per_node)


def job_size(options: SlurmOptions, resources: ArrayResources) -> JobSize:
    """Return the part of a node that a job takes, on the cluster of this machine.

    The cluster is queried, once, if a job takes GPUs and the site file does not set the rest.
    """
    size = given_size(options, resources)
    if not resources.gpus_per_node or (size.cpus and size.memory_mib is not None):
        return size
    return fitted_size(options, resources, _cluster(os.environ.get("SLURM_CONF", "")))


# `_conf` is a part of the cache's key only: another configuration is another cluster.
@lru_cache(maxsize=8)
def _cluster(_conf: str) -> Cluster | None:
    return cluster.read_cluster()


def planned_jobs(cells: Sequence[Cell], options: SlurmOptions) -> list[PlannedJob]:
    """Return the resources that jobs of these cells request, one entry for each shape of cell."""
    jobs = []
    for shape, count in Counter(map(array_resources, cells)).items():
        size = job_size(options, shape)
        memory = f"{(size.memory_mib or 0) / 1024:.3g} GiB"
        if not size.memory_mib:
            memory = "the cluster's default of memory" if size.memory_mib is None else "all memory"
        nodes, gpus = shape
        hours = options.time_limit_hours
        jobs.append(PlannedJob(count, nodes, gpus, size.cpus, memory, size.exclusive, hours))
    return jobs


def given_size(options: SlurmOptions, resources: ArrayResources) -> JobSize:
    """Return the size that the site file sets. Default: one core for a job without GPUs, else
    nothing.
    """
    gpus = resources.gpus_per_node
    cpus = options.cpus_per_task or (options.cpus_per_gpu or 0) * gpus or (None if gpus else 1)
    memory = math.ceil(options.memory_gib * 1024) if options.memory_gib else None
    return JobSize(cpus, memory, bool(options.exclusive))


def fitted_size(
    options: SlurmOptions, resources: ArrayResources, answers: Cluster | None
) -> JobSize:
    """Return the size of a job. The nodes decide what the site file does not set.

    A job that takes all GPUs of a node takes the node: its CPUs, all its memory, and no other job
    with it. One that takes some of them takes that share of CPUs and memory. If nodes differ, the
    smallest decides, so that each of them can run the job. Of nodes that are not known it takes
    CPUS_PER_GPU.
    """
    size = given_size(options, resources)
    gpus = resources.gpus_per_node
    nodes = fitting_nodes(options, gpus, answers) if gpus and answers is not None else []
    flags = extra_flags(options).keys()
    if not nodes:
        unsaid = gpus and size.cpus is None and not flags & CPU_FLAGS
        return size._replace(cpus=CPUS_PER_GPU * gpus) if unsaid else size
    fits_exactly = all(gpus >= node.gpus_of("") for node in nodes)
    exclusive = fits_exactly if options.exclusive is None else size.exclusive
    cpus, memory = size.cpus, size.memory_mib
    if cpus is None and not flags & CPU_FLAGS:
        cpus = max(1, min(node.cpus * gpus // node.gpus_of("") for node in nodes))
    if memory is None and not flags & MEMORY_FLAGS:
        shares = [node.memory_mib * gpus // node.gpus_of("") for node in nodes]
        memory = 0 if exclusive else min(shares)
    return JobSize(cpus, memory, exclusive)


def fitting_nodes(options: SlurmOptions, gpus: int, answers: Cluster) -> Sequence[ClusterNode]:
    """Return the nodes of the site's partition that have the GPUs, and the site's constraint if it
    is a single feature."""
    partition = answers.partition(options.partition)
    kinds = parse_gres(options.gres or "")
    nodes = answers.nodes_of(partition.name) if partition else []
    feature = options.constraint or ""
    if feature.replace("_", "").isalnum():
        nodes = [node for node in nodes if feature in node.features]
    kind = kinds[0][0] if kinds else ""
    return [node for node in nodes if node.gpus_of(kind) >= gpus]


def text(job: ArrayJob) -> str:
    """Return the script.

    It names no folder, because sbatch is called in the submission's folder.
    """
    from submitit.slurm.slurm import _make_sbatch_string  # pinned: constraints.txt

    options, size = job.options, job.size
    most = f"%{options.max_running}" if options.max_running else ""
    more: dict[str, object] = {
        # poll.SchedulerSnapshot finds an element's log by this name.
        "output": "%A_%a.log",
        "error": "%A_%a.log",
        # SLURM may start the job again; lease.open_attempt then makes the next attempt.
        "requeue": True,
        # B: only the batch shell gets the signal, which `exec` turns into the worker. The worker
        # passes it on to the steps that it has started.
        "signal": f"B:USR1@{options.signal_seconds}",
        "array": f"0-{job.elements - 1}{most}",
        "ntasks": job.resources.num_nodes,
        "ntasks-per-node": 1,
    }
    if size.exclusive:
        more["exclusive"] = True
    # An evaluation whose training failed can never start: SLURM takes it out of the queue.
    if job.after:
        more["kill-on-invalid-dep"] = "yes"
    more |= site_flags(options, job.resources.gpus_per_node, job.exclude)
    # -P: the job starts in its submission's folder, whose files must not be found as modules.
    command = shlex.join([options.python or sys.executable, "-P", "-m", job.program])
    # exec: Python replaces the shell, because SLURM signals only the process of the shell.
    script: str = _make_sbatch_string(
        command=f"exec {command}",
        folder=".",
        job_name=job.name,
        wckey=None,
        use_srun=False,
        nodes=job.resources.num_nodes,
        cpus_per_task=size.cpus,
        time=max(1, math.ceil(options.time_limit_hours * 60)),
        mem=None if size.memory_mib is None else f"{size.memory_mib}M",
        dependency=f"aftercorr:{job.after}" if job.after else None,
        additional_parameters=more,
    )
    return script


def argv(folder: Path, name: str = "job.sh") -> Sequence[str]:
    """Return the sbatch command for a script in a submission's folder.

    Its `#SBATCH` lines are given as arguments too: a variable of the person's environment
    (SBATCH_PARTITION, SBATCH_TIMELIMIT) replaces a line of the script, and no argument.
    """
    return (
        "sbatch",
        "--parsable",
        f"--chdir={folder}",
        *directives((folder / name).read_text("utf-8")),
        name,
    )


def directives(script: str) -> list[str]:
    """Return the arguments in the `#SBATCH` lines of a script."""
    lines = (line.removeprefix("#SBATCH ") for line in script.splitlines() if "#SBATCH" in line[:8])
    return [word for line in lines for word in shlex.split(line)]
