"""What is asked of the operating system: cores, the death of a parent, signals to a worker."""

import contextlib
import ctypes
import math
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

_PR_SET_PDEATHSIG = 1


def affinity() -> list[int]:
    """The cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def cores() -> int:
    """How many of them it may use at the same time: a container may have a CPU quota."""
    quota = _quota()
    return len(affinity()) if quota is None else min(len(affinity()), math.ceil(quota))


def _quota() -> float | None:
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return float(quota) / float(period)
    return None


def pin(core: int) -> None:
    """Keeps this process on one core, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {core})


def die_with(parent: int) -> None:
    """From now on the kernel kills this process when `parent` ends, however it ends.

    Linux only; elsewhere the nursery notices the end of orch by its closed channel.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the kernel was asked
        os._exit(1)


def node_name() -> str:
    """This machine's name; on a cluster, what its scheduler calls it."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def birth(pid: int) -> str:
    """When a process started, as the kernel tells it: with its pid, who it is. Empty if unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]


def is_running(pid: int) -> bool:
    """Whether a process lives; one that has ended and was not waited for does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def oom_kills() -> int:
    """How many processes of this one's cgroup the kernel has killed for memory; 0 if unknown."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines():
            _, names, path = line.split(":", 2)
            for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/memory"):
                found = _oom_kills(Path(root + path))
                if (not names or "memory" in names.split(",")) and found is not None:
                    return found
    return 0


def _oom_kills(cgroup: Path) -> int | None:
    for name in ("memory.events", "memory.oom_control"):
        with contextlib.suppress(OSError, ValueError):
            for line in (cgroup / name).read_text(encoding="ascii").splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return None


class Stop:
    """How often a person (or the system) asked orch to stop, while it is in use as a context."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.asked = 0

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self.asked += 1

    @contextlib.contextmanager
    def listening(self) -> Iterator["Stop"]:
        """Counts the signals instead of dying of them."""
        before = {number: signal.signal(number, self._ask) for number in self.SIGNALS}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
