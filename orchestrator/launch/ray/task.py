"""The program of a Ray job: it trains one cell.

    python -m orchestrator.launch.ray.task ATTEMPT SUBMISSION     ATTEMPT: its folder

A submission id says nothing about how often a job starts: a head that lost its state takes the same
id again. So the job looks into the run directory before anything else. It starts the attempt only
if the attempt's order names its submission, if the attempt is the cell's last one, and if nothing
has begun it. The first job that makes the heartbeat file begins it.

The exit code is 0 if the cell is trained. It is 1 if not; the exit record (or stderr) gives the
reason. It is NOT_OURS if the attempt was begun before or belongs to another submission.
"""

import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.errors import RunFolderError
from orchestrator.launch import node, worker
from orchestrator.launch.endings import Ending
from orchestrator.launch.processes import node_name
from orchestrator.launch.program import HangWatch
from orchestrator.launch.progress import checkpoint_step
from orchestrator.launch.ray.server import ADDRESS
from orchestrator.launch.slurm.lease import Lease, wait_for_earlier_attempts
from orchestrator.launch.slurm.scheduler import UNSEEN
from orchestrator.launch.slurm.task import NOT_OURS, end_process, exit_code_of, say
from orchestrator.records import Cell, ExitRecord, LaunchPlan
from orchestrator.rundir import AttemptDir, CellDir
from orchestrator.spec.site_options import node_options


def main(argv: list[str]) -> int:
    """Train the cell of an attempt. Return the job's exit code."""
    stop = worker.StopSignals()
    path, submission = Path(argv[0]), argv[1]
    if not path.is_dir():
        say(
            f"{path} cannot be seen from {node_name()}: the runs folder must lie on a file system "
            "that every node of the Ray sees"
        )
        return UNSEEN
    return exit_code_of(lambda: run(AttemptDir(path, int(path.name)), submission, stop))


def run(attempt: AttemptDir, submission: str, stop: worker.StopSignals) -> int:
    """Train the attempt's cell if this job may begin it. Return the job's exit code."""
    cell_dir = CellDir(attempt.path.parents[1])
    if fault := begin(cell_dir, attempt, submission):
        say(f"{cell_dir.path.name}: attempt {attempt.number} {fault}; this job starts nothing")
        return NOT_OURS
    order = attempt.read_order()
    os.environ["ORCH_DATA_DIR"] = order["data_dir"]  # as it was where the cell was submitted
    os.chdir(attempt.path)
    wait_for_earlier_attempts(cell_dir, attempt)
    cell = Cell.model_validate(order["cell"])
    options = node_options(order["options"])
    hang_watch = HangWatch(attempt.path, options.hung_after_minutes * 60)
    with Lease(cell_dir, attempt, hang_watch.ending).held() as lease:
        record = _train(cell, cell_dir, attempt, order, stop)
    if lease.lost or not attempt.path.exists() or attempt.read_exit() is not None:
        say(f"{cell_dir.path.name}: attempt {attempt.number} was ended from outside")
        return NOT_OURS
    if lease.ending is not None and record.state == "preempted":
        # the lease itself sent the signal that ended the training
        record = lease.ending.record(record.started, record.ended)
    attempt.write_exit(record)
    return 0 if record.state == "succeeded" else 1


def begin(cell_dir: CellDir, attempt: AttemptDir, submission: str) -> str:
    """Begin an attempt, or return why this job may not."""
    if fault := _fault(cell_dir, attempt, submission):
        return fault
    try:
        attempt.heartbeat.open("x").close()  # O_EXCL: one job makes it
    except FileExistsError:
        return "was begun by another start of its job"
    # A submitter that saw no heartbeat may have written another order in between.
    return _fault(cell_dir, attempt, submission)


def _fault(cell_dir: CellDir, attempt: AttemptDir, submission: str) -> str:
    last = cell_dir.attempts()[-1:]
    if not last or last[0].number != attempt.number:
        return "is not the last one any more"
    if attempt.read_order().get("submission") != submission:
        return "belongs to another submission"
    if attempt.exit.exists():
        return "has ended"
    return "was started before" if attempt.job.exists() else ""


def _train(
    cell: Cell,
    cell_dir: CellDir,
    attempt: AttemptDir,
    order: Mapping[str, Any],
    stop: worker.StopSignals,
) -> ExitRecord:
    started = time.time()
    job = {
        "submission": order["submission"],
        "launcher": "ray",
        "job": order["submission"],
        "checkpoint_step": checkpoint_step(cell, cell_dir),
    }
    # Opened and not locked: the lease decides on a cluster, where locks may not reach other nodes.
    claim = cell_dir.claim.open("a")

    def execute(plan: LaunchPlan) -> Ending:
        address = os.environ.get(ADDRESS)
        return node.run(plan, attempt, cell, order["options"], claim, ray_address=address)

    worker.redirect(attempt)
    if cell.scale == "micro":
        worker.one_thread()
    try:
        return worker.train(cell, cell_dir, attempt, job, stop, lambda: None, execute)
    except RunFolderError as error:
        with suppress(OSError):
            say(str(error))
        message = f"{error}. On a cluster a cell that found no room waits for `orch retry`"
        return Ending("failed", failure="disk", message=message).record(started, time.time())
    finally:
        claim.close()


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
