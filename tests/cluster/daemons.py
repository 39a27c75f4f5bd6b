"""The cluster's processes: started in the foreground, found again by a file, killed for sure."""

import os
import random
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from .waiting import wait_for


def start(name: str, argv: Sequence[str], base: Path, env: Mapping[str, str]) -> None:
    """Starts a daemon that dies with this process; its pid is kept in BASE/run/NAME.

    The kernel ties it to the thread that started it, so only the main thread's are tied.
    """
    tied = threading.current_thread() is threading.main_thread()
    # a program's work: code between fork and exec can wait for ever for another thread's lock
    tie = ("setpriv", "--pdeathsig", "KILL") if tied else ()
    with (base / "log" / f"{name}.out").open("ab") as sink:
        process = subprocess.Popen(
            [*tie, *argv],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env=dict(env),
            cwd=base,
            start_new_session=True,
        )
    (base / "run" / name).write_text(str(process.pid))
    _children.append(process)


_children: "list[subprocess.Popen[bytes]]" = []
"""Held so that the dead are reaped."""


def stop(name: str, base: Path, number: int = signal.SIGTERM, seconds: float = 15) -> None:
    """Ends a daemon; killed if it does not listen. Nothing if it is not there."""
    record = base / "run" / name
    with suppress(FileNotFoundError, ValueError):
        pid = int(record.read_text())
        for how, patience in ((number, seconds), (signal.SIGKILL, 5.0)):
            with suppress(ProcessLookupError):
                os.kill(pid, how)
            with suppress(TimeoutError):
                wait_for(lambda: not is_alive(pid), patience, f"{name} to end", every=0.05)
                break
    record.unlink(missing_ok=True)


def is_alive(pid: int) -> bool:
    """Whether a process runs; zombies do not."""
    for child in _children:
        child.poll()
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def is_running(name: str, base: Path) -> bool:
    with suppress(FileNotFoundError, ValueError):
        return is_alive(int((base / "run" / name).read_text()))
    return False


def left_over(conf: Path) -> Iterator[int]:
    """Processes of jobs and their shepherds: those whose environment names this cluster, and
    whatever has a working file of it open as its program's argument."""
    needle = f"SLURM_CONF={conf}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in (os.getpid(), os.getppid()):
            with suppress(OSError):
                if needle in (entry / "environ").read_bytes().split(b"\0") and _is_of_slurm(entry):
                    yield int(entry.name)


def _is_of_slurm(entry: Path) -> bool:
    """A job's process or slurmstepd: not a shell in which somebody exported SLURM_CONF."""
    if (entry / "comm").read_text().startswith("slurm"):
        return True
    return b"SLURM_JOB_ID=" in (entry / "environ").read_bytes()


def free_ports(count: int) -> int:
    """The first of `count` ports in a row that are free on the loopback."""
    for _ in range(200):
        first = random.SystemRandom().randrange(20000, 32000 - count)
        if all(map(_is_free, range(first, first + count))):
            return first
    raise RuntimeError("no free block of ports on the loopback")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
