"""Jobs of embedded cells help each other: most of so small a job is the start of Python and torch.

A job that has trained its own cell goes on, for a while, with cells of its array that no job has
begun, from the far end: SLURM starts an array's elements in their order. Whoever is the first to
make `<index>.taken` trains that cell. The element's own job waits for it, goes on with what a dead
or interrupted helper left, and ends at once, before it starts a Python, where it finds
`<index>.done`. So each element still ends as its cell did, and what follows it follows that.

All of it is done by a child, so that a helper that dies is not the end of its own, good cell.
"""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from orchestrator.launch import processes
from orchestrator.launch.slurm.lease import HEARTBEAT_SECONDS, LEASE_SECONDS, is_dead
from orchestrator.launch.worker import StopSignals
from orchestrator.rundir import AttemptDir, CellDir


def take_element(place: Path, index: int, job: str) -> bool:
    """Whether the element of the submission in `place` is this job's now, or was before."""
    marker = _taken(place, index)
    try:
        with marker.open("x") as file:
            file.write(job)
        return True
    except FileExistsError:
        return marker.read_text() == job


def claim_unstarted(
    place: Path, index: int, elements: int, job: str, going: Callable[[], bool]
) -> Iterator[int]:
    """Elements behind `index` that no job had taken, each this job's from now on, while `going`."""
    for other in range(elements - 1, index, -1):
        if not going():
            return
        if not _taken(place, other).exists() and take_element(place, other, job):
            yield other


def begin_unstarted(cell_dir: CellDir, number: int) -> bool:
    """Whether the attempt that was submitted is the last one and untouched: a helper begins cells,
    and leaves to their own jobs what anybody else ever began. It is marked as alive."""
    attempts = cell_dir.attempts()
    if not attempts or attempts[-1].number != number:
        return False
    last = attempts[-1]
    if last.job.exists() or last.heartbeat.exists() or last.exit.exists():
        return False
    last.heartbeat.touch()
    return True


def mark_done(place: Path, index: int) -> None:
    """Lets the element's own job end at once."""
    (place / f"{index}.done").touch()


def run_in_child(
    own: Callable[[], int], more: Callable[[], None], ask: StopSignals, signals: Mapping[int, str]
) -> int:
    """Does a job's own work in a child, and then, if its code is 0, what it does besides.

    The code of its own work, whatever becomes of the child after that. The child gets what this
    process is asked, and dies with it; this one dies as the child did before it had a code.
    """
    reads, writes = os.pipe()
    parent, child = os.getpid(), os.fork()
    if child == 0:
        _both(own, more, parent, writes)
    os.close(writes)
    told = False
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if ask.state is not None and not told:
            told = True
            os.kill(child, next(n for n, state in signals.items() if state == ask.state))
        time.sleep(0.05)
    if code := os.read(reads, 1):
        return code[0]
    died = os.waitstatus_to_exitcode(ended[1])
    if died < 0:
        if -died != signal.SIGKILL:
            signal.signal(-died, signal.SIG_DFL)
        os.kill(os.getpid(), -died)
    return died or 1


def _both(own: Callable[[], int], more: Callable[[], None], parent: int, told: int) -> NoReturn:
    try:
        processes.die_with(parent)
        code = own()
        os.write(told, bytes([code]))
        if code == 0:
            more()
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):  # of a full disk
                stream.flush()
        os._exit(1)


def wait_for_helper(
    place: Path, index: int, attempt: AttemptDir, asked: Callable[[], bool]
) -> None:
    """Returns when the attempt has ended, or its helper is dead or has not been heard of for
    SILENT_SECONDS of looking, or this job is asked to stop."""
    heard, since = 0.0, time.monotonic()
    while not (asked() or attempt.exit.exists() or is_dead(attempt)):
        began = time.monotonic()
        sign = attempt.heartbeat if attempt.heartbeat.exists() else _taken(place, index)
        latest, now = sign.stat().st_mtime, time.monotonic()
        if latest != heard or now - began > HEARTBEAT_SECONDS:  # or the file server was away
            heard, since = latest, now
        if now - since > LEASE_SECONDS:
            break
        time.sleep(0.2)
    look_anew = attempt.path / f".look-{os.getpid()}"  # or NFS tells for a while what was not there
    look_anew.touch()
    look_anew.unlink()


def _taken(place: Path, index: int) -> Path:
    return place / f"{index}.taken"
