"""Which attempt may train a cell: the lease.

The lease lets at most one attempt write, even if file locks do not reach other nodes.

A running attempt holds the lease by touching its heartbeat file every HEARTBEAT_SECONDS. Each time
it checks if a newer attempt exists. If so, it has been superseded (its node was given up, or a
person cancelled it) and ends itself. A new attempt makes its folder first. It starts when the
previous one has written its exit record or its heartbeat has timed out.

This order is safe: a superseded attempt sees the newer folder within one heartbeat, and the newer
attempt waits for ten heartbeats of silence. Silence is the difference between the times of two
heartbeat files. The file server sets both, so it does not matter that the clocks of two nodes
differ.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from orchestrator.errors import OrchError
from orchestrator.files import clock_of, read_json
from orchestrator.launch import processes
from orchestrator.launch.endings import Ending
from orchestrator.launch.processes import GRACE_SECONDS
from orchestrator.rundir import AttemptDir, CellDir

HEARTBEAT_SECONDS = 3.0
LEASE_SECONDS = 30.0
"""Seconds without a heartbeat after which an attempt counts as dead."""
FROZEN_SECONDS = 300.0
"""Seconds without a heartbeat after which the worker of a running job is frozen."""


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


def silence_of(attempt: AttemptDir, since: float = 0.0) -> float | None:
    """Return the seconds since the attempt's heartbeat, or since `since` if that is later; None if
    it never began."""
    try:
        return clock_of(attempt.path) - max(attempt.heartbeat.stat().st_mtime, since)
    except OSError:
        return None


def frozen(attempt: AttemptDir, silence: float | None, scheduler: str) -> str:
    """Return a sentence on a worker without a heartbeat; empty if it has one or has not started.

    A frozen worker (a file server does not answer, SIGSTOP) cannot report this itself, because its
    own watch is frozen too.
    """
    if silence is None or silence < FROZEN_SECONDS or (job := read_json(attempt.job)) is None:
        return ""
    return (
        f"frozen: no heartbeat from {job.get('host', 'its node')} for {silence / 60:.0f} min, "
        f"while {scheduler} says RUNNING. `orch run --wait` ends it and tries again on another "
        "node; `orch cancel` ends it"
    )


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
                self.own.write_exit(self.ending.record())
            os.kill(os.getpid(), signal.SIGKILL)
