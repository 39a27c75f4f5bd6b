"""One submitter at a time, and what is done about submissions that were cut short.

An intent without an outcome was left by an orch that was killed: the scheduler is asked whether it
has the job, by its name, and the answer is written down. An intent of another machine that is
still young may be of an orch at work there.
"""

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

from orchestrator.errors import EnvironmentFault, OrchError
from orchestrator.files import telling
from orchestrator.launch import system
from orchestrator.launch.slurm import book, poll, scheduler
from orchestrator.rundir import CellDir, RunFolder

SETTLED_SECONDS = 5.0
"""How long after an intent its sbatch may still be on the way to the controller."""
ELSEWHERE_SECONDS = 900.0
PATIENCE_SECONDS = 60.0


@contextmanager
def submitting(folder: RunFolder) -> Iterator[None]:
    """The right to submit cells of a folder. Raises OrchError if another orch keeps it."""
    lock = folder.submission(".lock")
    with telling(lock, passing=()):
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("a")
    with file:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise OrchError(
                        f"another orch is submitting cells of {folder.path}; wait for it"
                    ) from None
                time.sleep(0.2)
            except OSError:
                break  # no locks here: intents of other machines are respected by their age
        yield


def reconcile(folder: RunFolder) -> list[str]:
    """Gives every intent its outcome; what was found, in sentences. The lock is held.

    Raises EnvironmentFault where the scheduler cannot tell, OrchError where an orch on another
    machine may be at it.
    """
    told = []
    for left in [s for s in book.read(folder).values() if s.open]:
        _respect(left)
        time.sleep(max(0.0, min(SETTLED_SECONDS, left.time + SETTLED_SECONDS - time.time())))
        try:
            job = scheduler.find(left.name, left.time)
        except (scheduler.Away, scheduler.Refused) as error:
            raise EnvironmentFault(
                f"submission {left.id} was cut short, and the scheduler cannot say whether it has "
                f"the job: {error}. Nothing was submitted; run again when it answers"
            ) from error
        if job is None:
            book.note(folder, book.DROPPED, left.id, why="cut short before sbatch")
            told.append(f"submission {left.id} was cut short; its {left.cells} cells go again")
        else:
            book.note(folder, book.SENT, left.id, job=job, found=True)
            told.append(f"submission {left.id} was cut short after sbatch; it is job {job}")
    if told:
        poll.forget()
    return told


def _respect(left: book.Submission) -> None:
    age = time.time() - left.time
    if left.host == socket.gethostname():
        same = bool(left.birth) and system.birth(left.pid) == left.birth
        alive = same and left.pid != os.getpid()
    else:
        alive = age < ELSEWHERE_SECONDS
    if alive:
        raise OrchError(
            f"an orch on {left.host} (process {left.pid}) began to submit {left.cells} cells "
            f"{age:.0f} s ago and has not said how that ended; wait for it, or until "
            f"{ELSEWHERE_SECONDS / 60:.0f} minutes have passed"
        )


def close_books(folder: RunFolder) -> None:
    """Notes which submissions have nothing at work any more, so that they are not asked about."""
    for sent in book.read(folder).values():
        if sent.job is None or sent.drained or sent.kind != "train":
            continue
        elements = book.read_manifest(folder, sent.id).get("elements", ())
        if all(_is_final(CellDir(folder.cells_path / name), sent.id) for name, _ in elements):
            book.note(folder, book.DRAINED, sent.id)


def _is_final(cell_dir: CellDir, submission: str) -> bool:
    last = cell_dir.attempts()[-1:]
    if not last or last[0].read_order().get("submission") != submission:
        return True
    ended = last[0].read_exit()
    return ended is not None and ended.state not in ("preempted", "timed_out")
