"""Which job trains a cell: the lease, and work stealing between the jobs of one array.

The lease lets at most one attempt write, even if file locks do not reach other nodes.

A running attempt holds the lease by touching its heartbeat file every HEARTBEAT_SECONDS. Each time
it checks if a newer attempt exists. If so, it has been superseded (its node was given up, or a
person cancelled it) and ends itself. A new attempt makes its folder first. It starts when the
previous one has written its exit record or its heartbeat has timed out.

This order is safe: a superseded attempt sees the newer folder within one heartbeat, and the newer
attempt waits for ten heartbeats of silence. Silence is the difference between the times of two
heartbeat files. The file server sets both, so it does not matter that the clocks of two nodes
differ.

Work stealing is for embedded cells. The start of Python and torch takes most of the time of such a
small job. So a job that has trained its own cell continues, for a while, with cells of its array
that no job has begun. It starts at the far end, because SLURM starts an array's elements in order.
Files in the submission's folder, one pair per element:

    <index>.taken   made with O_EXCL by the job that trains the element's cell; holds that job's id
    <index>.done    another job has trained the cell: the element's own job ends before it starts
                    Python (the batch script looks for the file)

The element's own job waits while another job trains its cell, and continues the work of a dead or
interrupted one. So each element ends as its cell did, and an evaluation that depends on it starts
at the right time. All training is done in a child process, so that the crash of a helper does not
change the result of its own cell.
"""

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from orchestrator.errors import OrchError
from orchestrator.files import read_json
from orchestrator.launch import processes
from orchestrator.launch.endings import Ending
from orchestrator.launch.processes import GRACE_SECONDS
from orchestrator.rundir import AttemptDir, CellDir

if TYPE_CHECKING:
    from orchestrator.launch.worker import StopSignals

HEARTBEAT_SECONDS = 3.0
LEASE_SECONDS = 30.0
"""Seconds without a heartbeat after which an attempt counts as dead."""


def open_attempt(cell_dir: CellDir, submission: str, number: int) -> AttemptDir | None:
    """Return the attempt that a job of this submission must start, or None if it may not start one.

    number: the attempt for which the job was submitted. A job that SLURM starts again, after a
    preemption or its time limit, gets a new attempt of the same order. The order in the last
    attempt is the fence: a cell that was retried or cancelled in the meantime has another order. So
    a job that the scheduler had forgotten, and that starts later, does nothing.
    """
    attempts = cell_dir.attempts()
    last = attempts[-1] if attempts else None
    if last is None:
        return None
    order = last.read_order()
    if order.get("submission") != submission:
        return None
    ended = last.read_exit()
    if ended is None and not last.job.exists():
        return last if last.number >= number else None
    if ended is not None and ended.state not in ("preempted", "timed_out"):
        return None
    return cell_dir.reserve(json.dumps(order), fresh=True)


def wait_for_earlier_attempts(cell_dir: CellDir, own: AttemptDir) -> None:
    """Return when no earlier attempt can write any more."""
    for earlier in cell_dir.attempts():
        while earlier.number < own.number and not (earlier.exit.exists() or is_dead(earlier)):
            own.heartbeat.touch()
            try:
                # two times of the file server: the clocks of two nodes may differ
                silence = own.heartbeat.stat().st_mtime - earlier.heartbeat.stat().st_mtime
            except FileNotFoundError:
                break  # it never ran
            if silence > LEASE_SECONDS:
                break
            time.sleep(min(1.0, HEARTBEAT_SECONDS))


def is_dead(attempt: AttemptDir) -> bool:
    """Return True if the attempt ran on this node and its process is gone."""
    job = read_json(attempt.job) or {}
    if not job.get("birth") or job.get("host") != processes.node_name():
        return False
    # a later process can have the same pid, but not the same time of birth
    return processes.birth(int(job.get("pid", 0))) != str(job["birth"])


def has_helper(attempt: AttemptDir, job: str) -> bool:
    """Return True if a living job other than `job`, the element's own, runs the attempt."""
    if not attempt.job.exists() or (read_json(attempt.job) or {}).get("job") in (None, job):
        return False
    try:
        return time.time() - attempt.heartbeat.stat().st_mtime < LEASE_SECONDS
    except FileNotFoundError:
        return False


class Lease:
    """A running attempt's right to write.

    watch: returns an ending if the attempt must end (it hangs), None while it may continue.
    """

    def __init__(self, cell_dir: CellDir, own: AttemptDir, watch: Callable[[], Ending | None]):
        self.cell_dir, self.own, self._watch = cell_dir, own, watch
        self.ending: Ending | None = None
        """Set when `watch` ended the attempt."""
        self.lost = False
        """A newer attempt has taken over, or the folder is gone: nothing more may be written."""

    @contextmanager
    def held(self) -> Iterator["Lease"]:
        """Renew the lease, in a separate thread, while the context lasts."""
        done = threading.Event()
        self.own.heartbeat.touch()
        thread = threading.Thread(target=self._renew, args=(done,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            done.set()
            thread.join(timeout=HEARTBEAT_SECONDS)

    def _renew(self, done: threading.Event) -> None:
        while not done.wait(HEARTBEAT_SECONDS):
            # If the file server does not answer, the next heartbeat asks it again. To give up here
            # would end this run, and no other attempt could start as long as the server is silent.
            with suppress(OSError, OrchError):
                self.lost = self._is_superseded()
                self.ending = self._watch()
            if self.lost or self.ending is not None:
                self._end_process(done)
                return

    def _is_superseded(self) -> bool:
        try:
            os.utime(self.own.heartbeat)  # not touch, which would make a pruned folder again
        except FileNotFoundError:
            return True
        return any(other.number > self.own.number for other in self.cell_dir.attempts())

    def _end_process(self, done: threading.Event) -> None:
        """Ask this process to stop, as SLURM does. Kill it if the trainer does not react."""
        os.kill(os.getpid(), signal.SIGTERM)
        if not done.wait(2 * GRACE_SECONDS):
            # The worker hangs and cannot write its record, so this thread writes it. After the
            # lease is lost, nothing may be written.
            if not self.lost and self.ending is not None:
                now = time.time()
                self.own.write_exit(self.ending.record(now, now))
            os.kill(os.getpid(), signal.SIGKILL)


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
        # A job that was killed between the two lines above leaves an empty marker, which is no
        # job's. The element's own job then takes the cell over, as from a dead helper
        # (`wait_for_helper`).
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
    """Return True if attempt `number` is the last one and was never begun. Then mark it as alive.

    A helper takes only cells that no job has begun. The element's own job finishes a begun one,
    because only that job waits for an earlier attempt.
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
    stop: "StopSignals",
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
    # The parent has closed its writing end, so this read cannot block: it returns the code, or
    # nothing if the child died before it had one.
    if code := os.read(reads, 1):
        return code[0]
    died = os.waitstatus_to_exitcode(ended[1])
    if died < 0:
        # SIGKILL has no handler that could be reset.
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
            with suppress(OSError):  # the disk may be full
                stream.flush()
        # Not sys.exit, which would run the exit handlers of the parent in the child too. The parent
        # already has the code of the own work.
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
    # An NFS client caches for seconds that a file does not exist. A change to the directory by this
    # client ends that, so that the caller sees the exit record.
    refresh = attempt.path / f".look-{os.getpid()}"
    refresh.touch()
    refresh.unlink()


def _taken(submission: Path, index: int) -> Path:
    return submission / f"{index}.taken"
