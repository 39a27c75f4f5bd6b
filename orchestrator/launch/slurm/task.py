"""The program of a training job: it runs one element of a job array.

python -m orchestrator.launch.slurm.task     SLURM's variables name the element

The exit code is 0 if the cell is trained. It is 1 if not; the exit record (or stderr) gives the
reason. It is NOT_OURS if the cell now belongs to another submission. scheduler.UNSEEN and
scheduler.FULL mean that no exit record could be written; scheduler.ending_of explains them.
"""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.files import read_json
from orchestrator.launch import worker
from orchestrator.launch.job import NOT_OURS, end_process, exit_code_of, say, train_attempt
from orchestrator.launch.progress import MAX_IDLE_REQUEUES, is_stuck, resumable_step
from orchestrator.launch.slurm import scheduler, submissions
from orchestrator.launch.slurm.lease import open_attempt
from orchestrator.launch.slurm.scheduler import job_id
from orchestrator.records import Cell, ExitRecord, State
from orchestrator.rundir import CellDir, RunFolder
from orchestrator.spec.site_options import SlurmOptions

STOP_SIGNALS: Mapping[int, State] = {**worker.STOP_SIGNALS, signal.SIGUSR1: "timed_out"}
"""SLURM sends USR1 before the time limit and, if the cluster is configured so, on preemption."""


class ArrayTask:
    """One element of an array, as seen by its job."""

    def __init__(self, submission: Path, index: int, manifest: Mapping[str, Any]):
        self.submission = submission
        """The folder of the submission, where the job runs. Its name is the submission's id."""
        self.index = index
        self.manifest = manifest
        self.folder = RunFolder(submission.parents[1])
        name, self.number = manifest["elements"][index]
        """The number of the attempt that was submitted."""
        self.cell_dir = CellDir(self.folder.cells_path / name)
        """The directory of this element's cell."""


def main() -> int:
    """Train the cell of this job's element. Return the job's exit code."""
    stop = worker.StopSignals(STOP_SIGNALS)
    task = read_task()
    if task is None:
        return scheduler.UNSEEN
    if code := exit_code_of(lambda: refuse_copies(task)):
        return code
    return exit_code_of(lambda: train(task, stop))


def read_task() -> ArrayTask | None:
    """Return the element that SLURM's variables name.

    Print a message and return None if this node does not see the runs folder.
    """
    submission = Path.cwd()
    manifest = read_json(submission / "manifest.json")
    if manifest is None:
        say(
            f"{submission}/manifest.json cannot be seen from {os.environ.get('SLURMD_NODENAME')}: "
            "the runs folder must lie on a file system that every node sees"
        )
        return None
    os.environ["ORCH_DATA_DIR"] = manifest["data_dir"]  # as it was where the cells were submitted
    return ArrayTask(submission, int(os.environ["SLURM_ARRAY_TASK_ID"]), manifest)


def refuse_copies(task: ArrayTask) -> int:
    """Return NOT_OURS, and print why, if another job array runs this submission; else 0.

    This is the last guard of `exactly once`: a second copy of the job ends here, before it has
    looked at any cell.
    """
    array = os.environ["SLURM_ARRAY_JOB_ID"]
    holder = submissions.claim_array(task.submission, array)
    if holder == array:
        return 0
    given_up = holder == submissions.NO_ARRAY
    runs = "was given up" if given_up else f"is run by job array {holder}"
    say(f"submission {task.submission.name} {runs}; job array {array} starts nothing")
    return NOT_OURS


def train(task: ArrayTask, stop: worker.StopSignals) -> int:
    """Train the element's cell if it still belongs to this submission. Put the job back into the
    queue if it was stopped before the end. Return the job's exit code."""
    cell_dir = task.cell_dir
    options = SlurmOptions.model_validate(task.manifest["options"])
    attempt = open_attempt(cell_dir, task.submission.name, task.number)
    if attempt is None:
        say(f"{cell_dir.path.name} is not this submission's any more")
        return _code_of_ended(task)
    cell = Cell.model_validate(attempt.read_order()["cell"])
    job = {
        "submission": task.submission.name,
        "launcher": "slurm",
        "job": job_id(),
        "restart": os.environ.get("SLURM_RESTART_COUNT", "0"),
    }
    ended = train_attempt(cell, cell_dir, attempt, task.manifest["options"], stop, job)
    if ended is None:
        return NOT_OURS
    record = _preempted_or_timed_out(ended, options)
    stopped = record.state in ("preempted", "timed_out")
    if stopped and is_stuck(cell, cell_dir, record):
        stopped, record = False, _without_progress(record, cell, cell_dir)
    attempt.write_exit(record)
    if stopped:
        _requeue(task, options)
    return 0 if record.state == "succeeded" else 1


def _preempted_or_timed_out(record: ExitRecord, options: SlurmOptions) -> ExitRecord:
    """Return the record with its true state: USR1 long before the time limit is a preemption."""
    if record.state != "timed_out":
        return record
    limit = options.time_limit_hours * 3600
    early = record.ended - record.started < limit - options.signal_seconds - 120
    return record.model_copy(update={"state": "preempted"}) if early else record


def _without_progress(record: ExitRecord, cell: Cell, cell_dir: CellDir) -> ExitRecord:
    """Return the record of a cell that is stopped again and again before its next checkpoint."""
    message = (
        f"stopped {MAX_IDLE_REQUEUES + 1} times ({record.state}) without a checkpoint newer than "
        f"step {resumable_step(cell, cell_dir)} of {cell.settings.num_train_steps}: lower "
        "cadence.checkpoint_every_steps or raise site.options.time_limit_hours, then `orch retry`"
    )
    changes = {"state": "failed", "failure": "no_progress", "message": message}
    return record.model_copy(update=changes)


def _requeue(task: ArrayTask, options: SlurmOptions) -> None:
    """Put the job back into the queue, unless it was requeued too often."""
    attempts = task.cell_dir.attempts()
    ours = [a for a in attempts if a.read_order().get("submission") == task.submission.name]
    if len(ours) > options.max_requeues:
        say(f"stopped {len(ours)} times; `orch run` goes on (site.options.max_requeues)")
    elif not scheduler.requeue_job(job_id()):
        say("the scheduler does not answer; `orch run` goes on with this cell")


def _code_of_ended(task: ArrayTask) -> int:
    """Return 0 for a cell that this submission has trained already, else NOT_OURS."""
    for last in task.cell_dir.attempts()[-1:]:
        ended = last.read_exit()
        if ended is not None and ended.state == "succeeded":
            return 0 if last.read_order().get("submission") == task.submission.name else NOT_OURS
    return NOT_OURS


if __name__ == "__main__":
    end_process(main())
