"""Work stealing between the jobs of one array of embedded cells.

The start of Python and torch takes most of the time of such a small job. So a job that has trained
its own cell continues, for a while, with cells of its array that no job has begun. It starts at the
far end, because SLURM starts an array's elements in order.

Files in the submission's folder, one pair per element:

    <index>.taken   made with O_EXCL by the job that trains the element's cell; holds that job's id
    <index>.done    another job has trained the cell: the element's own job ends before it starts
                    Python (the batch script looks for the file)

The element's own job waits while another job trains its cell, and continues the work of a dead or
interrupted one. So each element ends as its cell did, and an evaluation that depends on it starts
at the right time. All training is done in a child process, so that the crash of a helper does not
change the result of its own cell.
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


def take_element(submission: Path, index: int, job: str) -> bool:
    """Return True if the element belongs to this job, now or from before.

    submission: its folder.
    """
    marker = _taken(submission, index)
    try:
        with marker.open("x") as file:  # O_EXCL: one job makes it, on a network file system too
            file.write(job)
        return True
    except FileExistsError:
        return marker.read_text() == job


def claim_unstarted(
    submission: Path, index: int, elements: int, job: str, may_go_on: Callable[[], bool]
) -> Iterator[int]:
    """Yield elements after `index` that no job had taken. Take each one for this job first."""
    for other in range(elements - 1, index, -1):
        if not may_go_on():
            return
        if not _taken(submission, other).exists() and take_element(submission, other, job):
            yield other


def begin_unstarted(cell_dir: CellDir, number: int) -> bool:
    """Return True if attempt `number` is the last one and was never begun. Mark it as alive.

    A helper only begins cells. If any job has begun a cell, the element's own job finishes it: only
    that job waits for an earlier attempt.
    """
    attempts = cell_dir.attempts()
    if not attempts or attempts[-1].number != number:
        return False
    last = attempts[-1]
    if last.job.exists() or last.heartbeat.exists() or last.exit.exists():
        return False
    last.heartbeat.touch()
    return True


def mark_done(submission: Path, index: int) -> None:
    """Let the element's own job end at once."""
    (submission / f"{index}.done").touch()


def run_in_child(
    own: Callable[[], int],
    more: Callable[[], None],
    stop: StopSignals,
    signals: Mapping[int, str],
) -> int:
    """Run a job's own work in a child process, then `more` if its code is 0. Return that code.

    The code is that of the own work, even if the child dies afterwards. Signals to this process are
    passed on once, and the child dies with it. If the child dies before it has a code, this process
    dies in the same way, so that SLURM sees it.
    """
    reads, writes = os.pipe()
    parent, child = os.getpid(), os.fork()
    if child == 0:
        _run_both(own, more, parent, writes)
    os.close(writes)
    passed_on = False
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if stop.state is not None and not passed_on:
            passed_on = True
            os.kill(child, next(n for n, state in signals.items() if state == stop.state))
        time.sleep(0.05)
    if code := os.read(reads, 1):
        return code[0]
    died = os.waitstatus_to_exitcode(ended[1])
    if died < 0:
        if -died != signal.SIGKILL:
            signal.signal(-died, signal.SIG_DFL)
        os.kill(os.getpid(), -died)
    return died or 1


def _run_both(
    own: Callable[[], int], more: Callable[[], None], parent: int, report: int
) -> NoReturn:
    try:
        processes.die_with(parent)
        code = own()
        os.write(report, bytes([code]))
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
    submission: Path, index: int, attempt: AttemptDir, stopped: Callable[[], bool]
) -> None:
    """Return when the attempt has ended, its helper is dead, or this job is asked to stop.

    A helper is dead if its heartbeat has not changed during LEASE_SECONDS of looking. The seconds
    are counted by this process, not read from file times: a wait during which the file server did
    not answer must not count as silence.
    """
    heartbeat, since = 0.0, time.monotonic()
    while not (stopped() or attempt.exit.exists() or is_dead(attempt)):
        began = time.monotonic()
        sign = attempt.heartbeat if attempt.heartbeat.exists() else _taken(submission, index)
        latest, now = sign.stat().st_mtime, time.monotonic()
        if latest != heartbeat or now - began > HEARTBEAT_SECONDS:
            heartbeat, since = latest, now
        if now - since > LEASE_SECONDS:
            break
        time.sleep(0.2)
    # NFS caches for seconds that a file does not exist. A change to the directory made from here
    # ends that, so that the exit record is found.
    refresh = attempt.path / f".look-{os.getpid()}"
    refresh.touch()
    refresh.unlink()


def _taken(submission: Path, index: int) -> Path:
    return submission / f"{index}.taken"
