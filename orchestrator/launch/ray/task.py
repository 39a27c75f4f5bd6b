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
from pathlib import Path

from orchestrator.launch import worker
from orchestrator.launch.job import NOT_OURS, end_process, exit_code_of, say, train_attempt
from orchestrator.launch.processes import node_name
from orchestrator.launch.ray.server import ADDRESS
from orchestrator.launch.slurm.scheduler import UNSEEN
from orchestrator.records import Cell
from orchestrator.rundir import AttemptDir, CellDir


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
    cell = Cell.model_validate(order["cell"])
    job = {"submission": submission, "launcher": "ray", "job": submission}
    address = os.environ.get(ADDRESS)
    record = train_attempt(cell, cell_dir, attempt, order["options"], stop, job, address)
    if record is None:
        return NOT_OURS
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


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
