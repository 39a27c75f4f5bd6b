"""At most one attempt of a cell writes, also where file locks do not reach from node to node.

A running attempt touches its `beat` every few seconds, and looks whether there is a newer attempt:
then it is a zombie (its node was given up, a person cancelled it), and ends itself. A newer attempt
makes its folder first and starts only when the older one has written how it ended, or has been
silent for longer than a living one may. Times are the file system's own: both are of `beat` files.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from orchestrator.errors import OrchError
from orchestrator.files import read_json
from orchestrator.launch import processes
from orchestrator.launch.channel import GRACE_SECONDS
from orchestrator.launch.endings import Ending
from orchestrator.rundir import AttemptDir, CellDir

HEARTBEAT_SECONDS = 3.0
LEASE_SECONDS = 30.0


def open_attempt(cell_dir: CellDir, submission: str, number: int) -> AttemptDir | None:
    """The attempt that a job of this submission is to start; None if the cell is not its any more.

    number: the attempt it was submitted for. A job that SLURM starts again gets a new one.
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


def wait_for_earlier_attempts(cell_dir: CellDir, mine: AttemptDir) -> None:
    """Returns when no earlier attempt can be writing any more."""
    for earlier in cell_dir.attempts():
        while earlier.number < mine.number and not (earlier.exit.exists() or is_dead(earlier)):
            mine.heartbeat.touch()
            try:
                silent = mine.heartbeat.stat().st_mtime - earlier.heartbeat.stat().st_mtime
            except FileNotFoundError:
                break  # it never lived
            if silent > LEASE_SECONDS:
                break
            time.sleep(min(1.0, HEARTBEAT_SECONDS))


def is_dead(attempt: AttemptDir) -> bool:
    """Whether it ran on this very node and its process is gone."""
    job = read_json(attempt.job) or {}
    if not job.get("birth") or job.get("host") != processes.node_name():
        return False
    return processes.birth(int(job.get("pid", 0))) != str(job["birth"])


def has_helper(attempt: AttemptDir, job: str) -> bool:
    """Whether another job than the element's own is at the attempt."""
    if not attempt.job.exists() or (read_json(attempt.job) or {}).get("job") in (None, job):
        return False
    try:
        return time.time() - attempt.heartbeat.stat().st_mtime < LEASE_SECONDS
    except FileNotFoundError:
        return False


class Lease:
    """A running attempt's right to write."""

    def __init__(self, cell_dir: CellDir, mine: AttemptDir, watch: Callable[[], Ending | None]):
        self.cell_dir, self.mine, self._watch = cell_dir, mine, watch
        self.ending: Ending | None = None
        """Why it was ended from here, if it was."""
        self.lost = False
        """A newer attempt has taken over, or the folder is gone: nothing more may be written."""

    @contextmanager
    def held(self) -> Iterator["Lease"]:
        """Beats, in a thread of its own, while the context lasts."""
        done = threading.Event()
        self.mine.heartbeat.touch()
        thread = threading.Thread(target=self._beat, args=(done,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            done.set()
            thread.join(timeout=HEARTBEAT_SECONDS)

    def _beat(self, done: threading.Event) -> None:
        while not done.wait(HEARTBEAT_SECONDS):
            with suppress(OSError, OrchError):  # a file server that is away is asked again
                self.lost = self._is_superseded()
                self.ending = self._watch()
            if self.lost or self.ending is not None:
                self._end(done)
                return

    def _is_superseded(self) -> bool:
        try:
            os.utime(self.mine.heartbeat)
        except FileNotFoundError:
            return True
        return any(other.number > self.mine.number for other in self.cell_dir.attempts())

    def _end(self, done: threading.Event) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        if not done.wait(2 * GRACE_SECONDS):  # the trainer does not listen
            if not self.lost and self.ending is not None:
                now = time.time()
                self.mine.write_exit(self.ending.record(now, now))
            os.kill(os.getpid(), signal.SIGKILL)
