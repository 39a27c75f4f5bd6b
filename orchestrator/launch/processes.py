"""Ask the operating system about cores, memory and processes, run commands, and receive requests to
stop."""

import contextlib
import ctypes
import math
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

GRACE_SECONDS = 10.0
"""Seconds for a worker that was asked to stop to write what it has."""
_PR_SET_PDEATHSIG = 1


def finished(
    argv: Sequence[str], seconds: float, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command without input to its end and return its code and output, as text.

    `options` are those of subprocess.run. Raise OSError if it cannot start, and
    subprocess.TimeoutExpired after `seconds`.
    """
    return subprocess.run(
        argv,
        capture_output=True,
        text=True,
        errors="replace",  # a scheduler prints names in whatever encoding they were written
        check=False,
        timeout=seconds,
        stdin=subprocess.DEVNULL,
        **options,
    )


def cores() -> int:
    """Return the number of cores that may be used at once. A container may have a CPU quota."""
    count = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    quota = _quota()
    return count if quota is None else min(count, math.ceil(quota))


def _quota() -> float | None:
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        # Without a quota the first word is `max`, which is no number: ValueError.
        return float(quota) / float(period)
    return None


def die_with(parent: int) -> None:
    """Let the kernel kill this process when `parent` ends, however it ends.

    Linux only; elsewhere the fork server notices the end of orch by its closed channel.
    """
    if sys.platform == "linux":
        # PR_SET_PDEATHSIG of prctl(2), for which Python has no function. A forked child does not
        # inherit it, so each process asks for itself.
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before the kernel was asked
        os._exit(1)


def node_name() -> str:
    """Return this machine's name; on a cluster, the name its scheduler uses."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def birth(pid: int) -> str:
    """Return when a process started, as the kernel counts; empty if unknown.

    Pid and birth together name a process: a pid alone may be used again.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # Field 22 of proc(5), starttime. The second field, the program's name in brackets, may itself
    # have blanks and brackets: the fields are counted after the last bracket.
    return stat.rpartition(")")[2].split()[19]


def is_running(pid: int) -> bool:
    """Return True if a process lives.

    A process that has ended but was not waited for does not live.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    # Z: a zombie; X: dead.
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def oom_kills() -> int:
    """Return how many processes of this cgroup the kernel has killed for memory; 0 if unknown."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines():
            # cgroup v2 gives one line with an empty list of controllers, v1 one for each.
            _, names, path = line.split(":", 2)
            file = f"/memory{path}/memory.oom_control" if names else f"{path}/memory.events"
            if not names or "memory" in names.split(","):
                with contextlib.suppress(OSError):
                    text = Path(f"/sys/fs/cgroup{file}").read_text(encoding="ascii")
                    counts = dict(row.split() for row in text.splitlines())
                    return int(counts.get("oom_kill", 0))
    return 0


class Stop:
    """A counter of the requests to stop orch, from a person or the system."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.asked = 0

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self.asked += 1

    @contextlib.contextmanager
    def listening(self) -> Iterator["Stop"]:
        """Count the signals inside the context, instead of dying from them."""
        before = {number: signal.signal(number, self._ask) for number in self.SIGNALS}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
