"""What runs in a job: one element of an array, in the folder of its submission.

python -m orchestrator.launch.slurm.task     SLURM's variables say which element
"""

import os
import runpy
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from orchestrator.errors import OrchError, RunFolderError
from orchestrator.files import NO_ROOM, read_json
from orchestrator.launch import node, worker
from orchestrator.launch.endings import Ending
from orchestrator.launch.program import HangWatch
from orchestrator.launch.slurm import scheduler, script, work_stealing
from orchestrator.launch.slurm import scheduler as requeue
from orchestrator.launch.slurm.lease import Lease, open_attempt, wait_for_earlier_attempts
from orchestrator.launch.slurm.scheduler import job_id
from orchestrator.records import Cell, ExitRecord, LaunchPlan, State
from orchestrator.rundir import AttemptDir, CellDir, RunFolder
from orchestrator.spec.site_options import SlurmOptions

STOP_SIGNALS: Mapping[int, State] = {**worker.STOP_SIGNALS, signal.SIGUSR1: "timed_out"}
"""USR1 comes before the time limit and, where the cluster says so, on preemption."""
NOT_MINE = 3
"""Exit code of an element whose cell another submission has taken over, or a person cancelled."""
_STARTED = time.monotonic()


class TaskElement(NamedTuple):
    """One element of a job array, as its job finds it."""

    place: Path
    """The folder of the submission, where the job runs."""
    number: int
    """Its index in the array."""
    cell_dir: CellDir
    attempt: int
    """The number of the attempt that was submitted."""
    manifest: Mapping[str, Any]

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.place.parents[1])


def main() -> int:
    """Train the cell of this job's element; return the job's exit code."""
    ask = worker.StopSignals(STOP_SIGNALS)
    element = read_element()
    if element is None:
        return scheduler.UNSEEN
    if element.manifest["kind"] == "evaluate":
        # submitted by an orch whose evaluations did not name their own program
        runpy.run_module(script.EVALUATE, run_name="__main__", alter_sys=True)
    place, index, cell_dir, number, manifest = element
    if not _are_shared(cell_dir, manifest):
        return exit_code_of(lambda: train(cell_dir, place.name, number, manifest["options"], ask))
    return work_stealing.run_in_child(
        lambda: exit_code_of(lambda: train_shared(cell_dir, place, index, number, manifest, ask)),
        lambda: help_others(element.folder, place, index, manifest, ask),
        ask,
        STOP_SIGNALS,
    )


def read_element() -> TaskElement | None:
    """Return the element that SLURM's variables name; None, and say so, where the node does not see
    the runs folder."""
    place = Path.cwd()
    manifest = read_json(place / "manifest.json")
    if manifest is None:
        say(
            f"{place}/manifest.json cannot be seen from {os.environ.get('SLURMD_NODENAME')}: the "
            "runs folder must lie on a file system that every node sees"
        )
        return None
    index = int(os.environ["SLURM_ARRAY_TASK_ID"])
    name, number = manifest["elements"][index]
    os.environ["ORCH_DATA_DIR"] = manifest["data_dir"]  # as it was where the cells were submitted
    cell_dir = CellDir(RunFolder(place.parents[1]).cells_path / name)
    return TaskElement(place, index, cell_dir, number, manifest)


def exit_code_of(work: Callable[[], int]) -> int:
    """Return the exit code of the work. A fault that is not orch's own is a sentence and a code."""
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
    ended = train_cell(cell_dir, submission, number, plain, ask)
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
    if attempts and not work_stealing.take_element(place, index, job_id()):
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

    for other in work_stealing.claim_unstarted(place, index, len(elements), job_id(), going):
        name, number = elements[other]
        cell_dir = CellDir(folder.cells_path / name)
        if not work_stealing.begin_unstarted(cell_dir, number):
            continue
        ended = train_cell(cell_dir, place.name, number, plain, ask)
        if isinstance(ended, int):
            continue
        if ended.state != "succeeded":
            return
        work_stealing.mark_done(place, other)


def train_cell(
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
    wait_for_earlier_attempts(cell_dir, attempt)
    quiet = HangWatch(attempt.path, options.hung_after_minutes * 60)
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
        return worker.train(cell, cell_dir, attempt, job, ask, lambda: None, execute)
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


def end_process(code: int) -> NoReturn:
    """End the process with this code.

    The interpreter's own end would give another code where a disk is full.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    end_process(main())
