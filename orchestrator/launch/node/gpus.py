"""Check the health of a node's GPUs, before a trainer starts. A node with a bad GPU is avoided."""

import os
import shutil
import subprocess
from collections.abc import Iterable
from typing import NamedTuple

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
    if shutil.which("nvidia-smi") is None:
        return ()
    try:
        done = processes.finished(_query(("index", "memory.free", "memory.total", "name")), 60.0)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    gpus = []
    for line in () if done.returncode else done.stdout.splitlines():
        index, *rest = (word.strip() for word in line.split(",", 3))
        if len(rest) == 3 and rest[0].isdigit() and rest[1].isdigit():
            free, total = int(rest[0]), int(rest[1])
            kind = rest[2].lower().removeprefix("nvidia ").replace(" ", "-")
            name = kind if kind.endswith("gb") else f"{kind}-{round(total / 1024)}gb"
            gpus.append(MachineGpu(index, name, free >= _FREE_SHARE * total))
    return tuple(gpus)


def gpu_fault(count: int) -> str:
    """Return the fault of this node's GPUs, of which a run uses `count`; empty if there is none.

    nvidia-smi must exist, answer, and list at least `count` GPUs. Each GPU must have free memory
    and no uncorrectable ECC error since its driver was loaded. Only the job's GPUs are checked, and
    none if MIG divides them.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if "MIG-" in visible:
        return ""
    if shutil.which("nvidia-smi") is None:
        return (
            f"nvidia-smi is not on PATH, and {count} GPUs are wanted (site.options.gpu_check=false "
            "where GPUs are not NVIDIA's)"
        )
    try:
        done = processes.finished(_query(_QUERIED), _ASK_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"nvidia-smi does not answer ({error})"
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip()).splitlines()
        return f"nvidia-smi ends with code {done.returncode}: {words[-1] if words else ''}"
    faults = [fault for line in lines if (fault := _fault(line))]
    if len(lines) < count:
        faults.append(f"nvidia-smi lists {len(lines)} of the {count} GPUs of this run")
    return "; ".join(faults)


def _query(names: Iterable[str]) -> list[str]:
    """Return the command that asks for values of this job's GPUs, a line a GPU."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    argv = ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits"]
    return argv + ([f"--id={visible}"] if visible[:1].isdigit() or visible[:4] == "GPU-" else [])


def _fault(line: str) -> str:
    """Return what is wrong with the GPU of a line of nvidia-smi; empty if nothing is."""
    index, *values = (word.strip() for word in line.split(","))
    if len(values) != len(_QUERIED) - 1:
        return f"nvidia-smi says {line.strip()!r}"
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
