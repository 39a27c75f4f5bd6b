"""Check the health of a node's GPUs, before a trainer starts. A node with a bad GPU is avoided."""

import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from orchestrator.errors import EnvironmentFault
from orchestrator.launch import processes

_ASK_SECONDS = 60.0
"""Time limit for nvidia-smi. If a GPU has fallen off the bus, nvidia-smi may wait for ever."""
_FREE_SHARE = 0.9
"""Smallest share of free memory. With less, another process uses the GPU: trainers plan with all of
it."""
_QUERIED = ("index", "memory.free", "memory.total", "ecc.errors.uncorrected.volatile.total")
_NO_VALUE = frozenset({"N/A", "[N/A]", "[Not Supported]"})


class MachineGpu(NamedTuple):
    """A GPU of this machine, as nvidia-smi shows it."""

    id: str
    name: str
    """`a100-sxm4-80gb`: the form in which `resources.gpu` names one."""
    is_free: bool
    """False: another process holds a part of its memory."""


def machine_gpus() -> tuple[MachineGpu, ...]:
    """Return the GPUs of this machine that this process may use; none where nvidia-smi does not
    answer."""
    try:
        rows = _asked(("index", "memory.free", "memory.total", "name"))
    except EnvironmentFault:
        return ()
    gpus = []
    for index, free, total, full_name in (row for row in rows if len(row) == 4):
        if free.isdigit() and total.isdigit():
            kind = full_name.lower().removeprefix("nvidia ").replace(" ", "-")
            name = kind if kind.endswith("gb") else f"{kind}-{round(int(total) / 1024)}gb"
            gpus.append(MachineGpu(index, name, int(free) >= _FREE_SHARE * int(total)))
    return tuple(gpus)


def gpu_fault(count: int) -> str:
    """Return the fault of this node's GPUs, of which a run uses `count`; empty if there is none.

    nvidia-smi must exist, answer, and list at least `count` GPUs. Each GPU must have free memory
    and no uncorrectable ECC error since its driver was loaded. Only the job's GPUs are checked, and
    none if MIG divides them.
    """
    if "MIG-" in os.environ.get("CUDA_VISIBLE_DEVICES", ""):
        return ""
    try:
        rows = _asked(_QUERIED)
    except EnvironmentFault as error:
        return f"{error}; {count} GPUs are wanted"
    faults = [fault for row in rows if (fault := _fault(row))]
    if len(rows) < count:
        faults.append(f"nvidia-smi lists {len(rows)} of the {count} GPUs of this run")
    return "; ".join(faults)


def _asked(names: Iterable[str]) -> list[list[str]]:
    """Return values of each of this job's GPUs. Raise EnvironmentFault if nvidia-smi has none."""
    if shutil.which("nvidia-smi") is None:
        raise EnvironmentFault(
            "nvidia-smi is not on PATH (site.options.gpu_check=false where GPUs are not NVIDIA's)"
        )
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    argv = ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits"]
    argv += [f"--id={visible}"] if visible[:1].isdigit() or visible[:4] == "GPU-" else []
    try:
        done = processes.finished(argv, _ASK_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentFault(f"nvidia-smi does not answer ({error})") from error
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise EnvironmentFault(
            f"nvidia-smi ends with code {done.returncode}: {words[-1] if words else ''}"
        )
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    return [[word.strip() for word in line.split(",")] for line in lines]


def _fault(row: Sequence[str]) -> str:
    """Return what is wrong with the GPU of a row of _QUERIED; empty if nothing is."""
    index, *values = row
    if len(values) != len(_QUERIED) - 1:
        return f"nvidia-smi says {', '.join(row)!r}"
    numbers = []
    for value in values:
        if not value.isdigit() and value not in _NO_VALUE:
            return f"GPU {index}: nvidia-smi says {value!r}"
        numbers.append(int(value) if value.isdigit() else None)
    free, total, errors = numbers
    if errors:
        return f"GPU {index} has {errors} uncorrectable ECC errors"
    if free is not None and total and free < _FREE_SHARE * total:
        return f"GPU {index} has {free} of {total} MiB free: another process holds the rest"
    return ""
