"""What runs in a job: one element of an array, in the folder of its submission.

python -m orchestrator.launch.slurm.task     SLURM's variables say which element
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.errors import OrchError, RunFolderError
from orchestrator.files import NO_ROOM, read_json
from orchestrator.launch import node, worker
from orchestrator.launch.endings import Ending
from orchestrator.launch.program import Quiet
from orchestrator.launch.slurm import evaluation_task, requeue, scheduler, work_stealing
from orchestrator.launch.slurm.lease import Lease, open_attempt, wait_for_silence
from orchestrator.launch.slurm.requeue import job_id
from orchestrator.records import Cell, ExitRecord, LaunchPlan, State
from orchestrator.rundir import AttemptDir, CellDir, RunFolder
from orchestrator.spec.site_options import SlurmOptions

ASKED: Mapping[int, State] = {**worker.ASKED, signal.SIGUSR1: "timed_out"}
"""USR1 comes before the time limit and, where the cluster says so, on preemption."""
NOT_MINE = 3
"""Exit code of an element whose cell another submission has taken over, or a person cancelled."""
_STARTED = time.monotonic()


def main() -> int:
    ask = worker.StopSignals(ASKED)
    place = Path.cwd()
    manifest = read_json(place / "manifest.json")
    if manifest is None:
        say(
            f"{place}/manifest.json cannot be seen from {os.environ.get('SLURMD_NODENAME')}: the "
            "runs folder must lie on a file system that every node sees"
        )
        return scheduler.UNSEEN
    folder = RunFolder(place.parents[1])
    index = int(os.environ["SLURM_ARRAY_TASK_ID"])
    name, number = manifest["elements"][index]
    cell_dir = CellDir(folder.cells_path / name)
    os.environ["ORCH_DATA_DIR"] = manifest["data_dir"]  # what the submitter means by it
    if manifest["kind"] == "evaluate":
        return _told(lambda: evaluation_task.run(folder, cell_dir, manifest, ask))
    if not _are_shared(cell_dir, manifest):
        return _told(lambda: train(cell_dir, place.name, number, manifest["options"], ask))
    return work_stealing.in_child(
        lambda: _told(lambda: train_shared(cell_dir, place, index, number, manifest, ask)),
        lambda: help_others(folder, place, index, manifest, ask),
        ask,
        ASKED,
    )


def _told(work: Callable[[], int]) -> int:
    """The exit code of the work; of what went wrong for a reason of its own, a sentence and one."""
    try:
        return work()
    except (OrchError, OSError) as error:
        cause = error.__cause__ if isinstance(error, OrchError) else error
        full = isinstance(cause, OSError) and cause.errno in NO_ROOM
        if not full and not isinstance(error, OrchError):
            raise
        say(str(error))
        return scheduler.FULL if full else 1


def _are_shared(cell_dir: CellDir, manifest: Mapping[str, Any]) -> bool:
    """Whether jobs of this array may train each other's cells."""
    wanted = SlurmOptions.model_validate(manifest["options"]).help_seconds > 0
    return wanted and len(manifest["elements"]) > 1 and cell_dir.read_cell().scale == "micro"


def train(
    cell_dir: CellDir,
    submission: str,
    number: int,
    plain: Mapping[str, Any],
    ask: worker.StopSignals,
) -> int:
    """Trains the job's own cell, and puts the job back into the queue if it was stopped before its
    end."""
    ended = fulfil(cell_dir, submission, number, plain, ask)
    if isinstance(ended, int):
        return ended
    if ended.state in ("preempted", "timed_out"):
        return _again(cell_dir, submission, SlurmOptions.model_validate(plain))
    return 0 if ended.state == "succeeded" else 1


def train_shared(
    cell_dir: CellDir,
    place: Path,
    index: int,
    number: int,
    manifest: Mapping[str, Any],
    ask: worker.StopSignals,
) -> int:
    """The same, after waiting for the job that helps with it, if one does."""
    attempts = [attempt for attempt in cell_dir.attempts() if attempt.number >= number]
    if attempts and not work_stealing.take(place, index, job_id()):
        work_stealing.wait_for_helper(place, index, attempts[0], lambda: ask.state is not None)
        if ask.state in ("preempted", "timed_out"):
            requeue.requeue_job(job_id())  # nothing was stopped here: it does not count
            return 1
    return train(cell_dir, place.name, number, manifest["options"], ask)


def help_others(
    folder: RunFolder, place: Path, index: int, manifest: Mapping[str, Any], ask: worker.StopSignals
) -> None:
    """Trains further cells of the array, until the time for that is over, one does not succeed, or
    this job is asked to stop. What it leaves, their own jobs finish."""
    plain, elements = manifest["options"], manifest["elements"]
    until = _STARTED + SlurmOptions.model_validate(plain).help_seconds

    def going() -> bool:
        return ask.state is None and time.monotonic() < until

    for other in work_stealing.to_help(place, index, len(elements), job_id(), going):
        name, number = elements[other]
        cell_dir = CellDir(folder.cells_path / name)
        if not work_stealing.may_begin(cell_dir, number):
            continue
        ended = fulfil(cell_dir, place.name, number, plain, ask)
        if isinstance(ended, int):
            continue
        if ended.state != "succeeded":
            return
        work_stealing.done(place, other)


def fulfil(
    cell_dir: CellDir,
    submission: str,
    number: int,
    plain: Mapping[str, Any],
    ask: worker.StopSignals,
) -> ExitRecord | int:
    """Trains the cell if it is still this submission's. How it ended, or the job's exit code."""
    attempt = open_attempt(cell_dir, submission, number)
    if attempt is None:
        say(f"{cell_dir.path.name} is not this submission's any more")
        return _code_of(cell_dir, submission)
    options = SlurmOptions.model_validate(plain)
    cell = Cell.model_validate(attempt.read_order()["cell"])
    wait_for_silence(cell_dir, attempt)
    quiet = Quiet(attempt.path, options.hung_after_minutes * 60)
    with Lease(cell_dir, attempt, quiet.ending).held() as lease:
        record = _attempt(cell, cell_dir, attempt, submission, plain, ask)
    if lease.lost or not attempt.path.exists():
        say(f"{cell_dir.path.name}: attempt {attempt.number} was taken over, or removed")
        return NOT_MINE
    if lease.ending is not None and record.state == "preempted":
        record = lease.ending.record(record.started, record.ended)
    record = _stopped_by_whom(record, options)
    attempt.write_exit(record)
    return record


def _attempt(
    cell: Cell,
    cell_dir: CellDir,
    attempt: AttemptDir,
    submission: str,
    plain: Mapping[str, Any],
    ask: worker.StopSignals,
) -> ExitRecord:
    started = time.time()
    claim = cell_dir.claim.open("a")
    job = {
        "submission": submission,
        "launcher": "slurm",
        "job": job_id(),
        "restart": os.environ.get("SLURM_RESTART_COUNT", "0"),
    }

    def execute(plan: LaunchPlan) -> Ending:
        return node.run(plan, attempt, cell, plain, claim)

    worker.redirect(attempt)
    if cell.scale == "micro":
        worker.one_thread()
    try:
        return worker.perform(cell, cell_dir, attempt, job, ask, lambda: None, execute)
    except RunFolderError as error:
        say(str(error))
        told = f"{error}. On a cluster a cell that found no room waits for `orch retry`"
        return Ending("failed", failure="disk", message=told).record(started, time.time())
    finally:
        claim.close()


def _stopped_by_whom(record: ExitRecord, options: SlurmOptions) -> ExitRecord:
    """USR1 long before the time limit is a preemption."""
    if record.state != "timed_out":
        return record
    limit = options.time_limit_hours * 3600
    early = record.ended - record.started < limit - options.signal_seconds - 120
    return record.model_copy(update={"state": "preempted"}) if early else record


def _again(cell_dir: CellDir, submission: str, options: SlurmOptions) -> int:
    """Back into the queue, unless a person ended the job or it was there too often."""
    mine = [a for a in cell_dir.attempts() if a.read_order().get("submission") == submission]
    if len(mine) > options.max_requeues:
        say(f"stopped {len(mine)} times; `orch run` goes on (site.options.max_requeues)")
        return 1
    if not requeue.requeue_job(job_id()):
        say("the scheduler does not answer; `orch run` goes on with this cell")
    return 1


def _code_of(cell_dir: CellDir, submission: str) -> int:
    """0 for a cell that this submission has trained already."""
    last = cell_dir.attempts()[-1:]
    ended = last[0].read_exit() if last else None
    done = ended is not None and ended.state == "succeeded"
    return 0 if done and last[0].read_order().get("submission") == submission else NOT_MINE


def say(text: str) -> None:
    with suppress(OSError):  # of a full disk
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


if __name__ == "__main__":
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)  # the interpreter's own end would give another code where a disk is full
