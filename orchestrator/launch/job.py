"""One attempt inside a job of a cluster, trained under the lease; a job's words and exit code."""

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NoReturn

from orchestrator.errors import OrchError, RunFolderError
from orchestrator.files import NO_ROOM
from orchestrator.launch import node, worker
from orchestrator.launch.endings import Ending
from orchestrator.launch.program import HangWatch
from orchestrator.launch.progress import resumable_step
from orchestrator.launch.slurm.lease import Lease, wait_for_earlier_attempts
from orchestrator.launch.slurm.scheduler import FULL
from orchestrator.records import Cell, ExitRecord, LaunchPlan
from orchestrator.rundir import AttemptDir, CellDir
from orchestrator.spec.site_options import node_options

NOT_OURS = 3
"""Exit code of a process whose cell another has, or a person cancelled."""


def train_attempt(
    cell: Cell,
    cell_dir: CellDir,
    attempt: AttemptDir,
    options: Mapping[str, object],
    stop: worker.StopSignals,
    job: Mapping[str, object],
    ray_address: str | None = None,
) -> ExitRecord | None:
    """Train a cell once no earlier attempt can write any more. Return how it ended.

    Return None if the attempt was ended from outside: then nothing may be written. options:
    `site.options`. job: further entries of job.json. ray_address: the Ray of which the job is a
    part.
    """
    wait_for_earlier_attempts(cell_dir, attempt)
    hang_watch = HangWatch(attempt.path, node_options(options).hung_after_minutes * 60)
    # The claim is opened and not locked: the lease decides on a cluster, where locks may not reach
    # other nodes. The trainer inherits it as it does on one machine.
    with (
        Lease(cell_dir, attempt, hang_watch.ending).held() as lease,
        cell_dir.claim.open("a") as claim,
    ):

        def execute(plan: LaunchPlan) -> Ending:
            return node.run(plan, attempt, cell, options, claim, ray_address=ray_address)

        started = time.time()
        job = {**job, "checkpoint_step": resumable_step(cell, cell_dir)}
        worker.redirect(attempt.stdout, attempt.stderr)
        if cell.scale == "micro":
            worker.one_thread()
        try:
            record = worker.train(cell, cell_dir, attempt, job, stop, lambda: None, execute)
        except RunFolderError as error:
            say(str(error))
            message = f"{error}. On a cluster a cell that found no room waits for `orch retry`"
            ending = Ending("failed", failure="disk", message=message)
            record = ending.record(started)
    # `orch run --wait` writes the ending of a frozen worker, and the signal of its scancel wakes
    # the worker up.
    if lease.lost or not attempt.path.exists() or attempt.read_exit() is not None:
        say(f"{cell_dir.path.name}: attempt {attempt.number} was ended from outside")
        return None
    if lease.ending is not None and record.state == "preempted":
        # the lease itself sent the signal that ended the training
        return lease.ending.record(record.started, record.ended)
    return record


def exit_code_of(work: Callable[[], int]) -> int:
    """Return the exit code of the work. Print a sentence for an error, and return its code."""
    try:
        return work()
    except (OrchError, OSError) as error:
        cause = error.__cause__ if isinstance(error, OrchError) else error
        full = isinstance(cause, OSError) and cause.errno in NO_ROOM
        if not full and not isinstance(error, OrchError):
            raise
        say(str(error))
        return FULL if full else 1


def say(text: str) -> None:
    """Print a line to the job's own log."""
    with suppress(OSError):  # of a full disk
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def end_process(code: int) -> NoReturn:
    """End the process with this code.

    The interpreter's normal exit would give another code if a disk is full.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)
