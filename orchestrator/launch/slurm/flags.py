"""The flags by which a site's options reach SLURM: one writer for every job that orch starts.

Training, evaluation, the controller of a search and the probe of `orch doctor` use it.
"""

from collections.abc import Iterable, Mapping

from orchestrator.spec.node_gpus import requested_gres
from orchestrator.spec.site_options import SlurmOptions

CPU_FLAGS = frozenset({"cpus-per-task", "cpus-per-gpu"})
MEMORY_FLAGS = frozenset({"mem", "mem-per-cpu", "mem-per-gpu"})
SBATCH_ONLY = frozenset({"batch", "export-file", "get-user-env", "ignore-pbs", "requeue"})
"""Flags of sbatch that srun refuses."""


def extra_flags(options: SlurmOptions) -> dict[str, str | bool]:
    """Return `site.options.extra`: flag -> value, True for a flag without one."""
    split = (flag.removeprefix("--").partition("=") for flag in options.extra)
    return {name: value if equals else True for name, equals, value in split}


def site_flags(
    options: SlurmOptions, gpus: int, exclude: Iterable[str] = ()
) -> dict[str, str | bool]:
    """Return what the site sets for each of its jobs: flag -> value, True for one without a value.

    gpus: GPUs that the job takes of each node. exclude: nodes that this job avoids, in addition.
    """
    flags = {
        "partition": options.partition,
        "account": options.account,
        "qos": options.qos,
        "constraint": options.constraint,
        "reservation": options.reservation,
        "exclude": ",".join([*filter(None, [options.exclude]), *exclude]),
        "gres": requested_gres(options.gres, gpus) if gpus else None,
    }
    return {name: value for name, value in flags.items() if value} | extra_flags(options)


def as_arguments(flags: Mapping[str, object]) -> list[str]:
    """Return flags as arguments of srun."""
    return [f"--{name}" if value is True else f"--{name}={value}" for name, value in flags.items()]
