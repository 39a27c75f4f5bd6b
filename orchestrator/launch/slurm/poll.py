"""Ask SLURM about attempts that have no final exit record.

The scheduler is asked once for all jobs of a folder. The answer is kept for a while, longer each
time nothing changed: reading the states of 10,000 cells costs one sacct. The queue is asked too in
three cases: accounting does not answer, it does not know a job yet, or it says that a job ended
whose worker has not written so. This module writes nothing.
"""

import random
import re
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.files import read_tail
from orchestrator.launch.slurm import scheduler, submissions
from orchestrator.launch.slurm.lease import has_helper
from orchestrator.launch.slurm.messages import stuck_reason
from orchestrator.records import ExitRecord, State
from orchestrator.rundir import ON_CLUSTER, AttemptDir, CellDir, RunFolder, SchedulerReport

FIRST_SECONDS, LONGEST_SECONDS = 4.0, 60.0
"""Seconds for which an answer is kept, at first and at most."""
PATIENCE_SECONDS = 30.0
"""Seconds that a job waits before its reason is checked."""
_FRESH_SECONDS = 1.0
_YOUNG_SECONDS = 120.0
"""Seconds for which accounting may not know a job that was just submitted."""
_SKEW_SECONDS = 3600.0
"""Maximum difference, in seconds, between the clocks of a login node and of the controller."""


def polled_state(
    cell_dir: CellDir, attempt: AttemptDir, ended: ExitRecord | None
) -> SchedulerReport | None:
    """Return the state of a cell whose last attempt was submitted but has no final exit record.

    ended: an exit record with state preempted or timed_out: the job may be in the queue again.
    Return None if the submission was refused or never sent: then nothing works on the attempt.
    """
    order = _read_head(attempt)
    folder = RunFolder(cell_dir.path.parents[1])
    answer = snapshot(folder)
    # a submission younger than the answer is in the ledger only
    submission = answer.submissions.get(order["submission"])
    submission = submission or submissions.read(folder).get(order["submission"])
    if submission is None:
        fault = (
            f"{attempt.order} names a submission that is not in {folder.ledger}: it was removed "
            "or cut. Remove the attempt's folder to submit the cell again"
        )
        return SchedulerReport("unknown", ended, fault)
    if submission.dropped:
        return None
    if submission.job is None:
        return SchedulerReport("submitted", ended)
    index = order["index"]
    report = answer.report(submission, index)
    if (
        ended is None
        and report.state != "running"
        and has_helper(attempt, f"{submission.job}_{index}")
    ):
        return SchedulerReport("running")
    if ended is None or report.state in ON_CLUSTER:
        return report
    if report.state == "cancelled":
        return report._replace(fault="")
    if answer.queued() is None:
        return SchedulerReport("unknown", ended, report.fault)  # it may be in the queue again
    if time.time() - ended.ended < scheduler.LATE_SECONDS:
        return SchedulerReport("pending")  # the job is putting itself back into the queue
    return SchedulerReport(ended.state, ended)


def polled_element(
    folder: RunFolder, submission: submissions.Submission, index: int
) -> SchedulerReport:
    """Return SLURM's report on one element of a submission that was sent."""
    return snapshot(folder).report(submission, index)


def stuck_jobs(folder: RunFolder, options: Mapping[str, object]) -> list[str]:
    """Return why jobs wait that will never start: one sentence per reason, with the number of jobs.

    options: `site.options`, for the values in the sentences. Accounting keeps the last reason other
    than priority and resources, even if it no longer holds. If such a reason prevents a start, ask
    the queue if it still holds, which is one call more.
    """
    answer = snapshot(folder)
    own = {s.job for s in answer.submissions.values() if s.job and not s.drained}
    since = time.time() - PATIENCE_SECONDS
    late = {
        element.reason
        for element in answer.accounted().values()
        if element.word in scheduler.WAITING and element.submitted < since
    }
    if not own or not (answer.fault or any(stuck_reason(reason, options) for reason in late)):
        return []
    queue = answer.queued() or {}
    reasons = Counter(
        element.reason
        for (job, _), element in queue.items()
        if job in own and element.word in scheduler.WAITING
    )
    sentences: Counter[str] = Counter()
    for reason, count in reasons.items():
        if (message := stuck_reason(reason, options)) is not None:
            sentences[message.sentence] += count
    return [
        f"{count} job{'s wait' if count > 1 else ' waits'}: {why}"
        for why, count in sentences.items()
    ]


class SchedulerSnapshot:
    """One answer of the scheduler about a folder's jobs.

    Each command is called when it is needed.
    """

    def __init__(self, folder: RunFolder):
        self.folder = folder
        self.submissions = {s.id: s for s in submissions.read(folder).values()}
        self.made = time.monotonic()
        self.listed: scheduler.Answer | None = None
        """The elements that sacct listed; None before it was asked."""
        self._queued: scheduler.Answer | None = None
        self.fault = ""
        """A sentence that names the command that does not answer."""

    def accounted(self) -> scheduler.Answer:
        """Return the elements that sacct lists; none while it does not answer."""
        if self.listed is None:
            jobs = [s.job for s in self.submissions.values() if s.job and not s.drained]
            try:
                self.listed = scheduler.accounting(jobs)
            except scheduler.SchedulerUnavailable as error:
                self.listed, self.fault = {}, f"accounting does not answer ({error})"
        return self.listed

    def queued(self) -> scheduler.Answer | None:
        """Return the elements that squeue lists; None while it does not answer."""
        if self._queued is None:
            try:
                self._queued = scheduler.queue()
            except (scheduler.SchedulerUnavailable, scheduler.SchedulerRefusal) as error:
                self.fault = f"the scheduler does not answer ({error})"
        return self._queued

    def report(self, submission: submissions.Submission, index: int) -> SchedulerReport:
        """Return the report of one element of a submission that was sent."""
        job, sent = str(submission.job), submission.time
        # what the element prints; SLURM makes it when it starts the element
        log = self.folder.submission(submission.id) / f"{job}_{index}.log"
        accounted = self.accounted().get((job, index))
        if accounted is not None and 0 < accounted.submitted < sent - _SKEW_SECONDS:
            accounted = None  # another job's: ids begin again when a controller loses its state
        if accounted is not None and not scheduler.is_over(accounted.word):
            return SchedulerReport(scheduler.state_of(accounted))
        queue = self.queued()
        if queue is None:
            return SchedulerReport("unknown", fault=f"{self.fault}; ask again when it does")
        queued = queue.get((job, index))
        if queued is not None and not scheduler.is_over(queued.word):
            return SchedulerReport(scheduler.state_of(queued))
        if accounted is None and queued is not None:
            if self._is_accounting_late(queued):
                return SchedulerReport("running")
            accounted = queued
        if accounted is not None:
            ended = scheduler.ending_of(accounted, _last_lines(log))
            waiting: State = "pending" if accounted.word in scheduler.STOPPED else "running"
            return SchedulerReport(ended.state if ended else waiting, ended)
        if self._knows(job) and not log.exists():
            return scheduler.cancelled_unstarted(job, index)
        if not self.fault and time.time() - sent < _YOUNG_SECONDS:
            return SchedulerReport("submitted")
        if not self.fault:
            return scheduler.forgotten(job, index)
        fault = (
            f"job {job}_{index} is not in the queue, and {self.fault}. If it stays so, `orch "
            "cancel` and `orch retry` submit the cell again"
        )
        return SchedulerReport("unknown", fault=fault)

    def _is_accounting_late(self, queued: scheduler.ArrayElement) -> bool:
        """Return True if accounting may still list the exit code of a job that has ended."""
        late = time.time() - (queued.ended or 0.0) < scheduler.LATE_SECONDS
        return late and not self.fault and queued.word != "CANCELLED"

    def _knows(self, job: str) -> bool:
        """Return True if any element of an array is listed: then SLURM has its submission."""
        return any(
            array == job
            for answer in (self.queued() or {}, self.accounted())
            for array, _ in answer
        )


_snapshots: dict[Path, SchedulerSnapshot] = {}
_gaps: dict[Path, float] = {}


def forget() -> None:
    """Drop all answers, because something was submitted or cancelled."""
    _snapshots.clear()
    _gaps.clear()


def refresh(folder: RunFolder) -> None:
    """Drop an answer that is older than _FRESH_SECONDS, before a decision."""
    known = _snapshots.get(folder.path)
    if known is not None and time.monotonic() - known.made > _FRESH_SECONDS:
        del _snapshots[folder.path]


def snapshot(folder: RunFolder) -> SchedulerSnapshot:
    """Return the scheduler's answer: a few seconds old at most, a minute if nothing changes."""
    known = _snapshots.get(folder.path)
    if known is not None and time.monotonic() - known.made < _gaps.get(folder.path, FIRST_SECONDS):
        return known
    fresh = SchedulerSnapshot(folder)
    if known is not None:
        longer = _gaps.get(folder.path, FIRST_SECONDS) * 1.5
        gap = longer if fresh.accounted() == known.listed else FIRST_SECONDS
        # many orchs that wait must not ask at the same moment
        _gaps[folder.path] = min(gap, LONGEST_SECONDS) * random.uniform(0.9, 1.1)  # noqa: S311  (jitter)
    _snapshots[folder.path] = fresh
    return fresh


_HEAD = re.compile(rb'\{"submission": "(\w+)", "index": (\d+), "cell": ')


def _read_head(attempt: AttemptDir) -> Mapping[str, Any]:
    """Return submission and index of an order, without parsing the cell, which follows them."""
    try:
        with attempt.order.open("rb") as file:
            hit = _HEAD.match(file.read(128))
    except OSError:
        hit = None
    if hit is None:
        return attempt.read_order()
    return {"submission": hit[1].decode(), "index": int(hit[2])}


def _last_lines(log: Path) -> str:
    lines = read_tail(log, 2000).decode(errors="replace").strip().splitlines()
    return "\n".join(line for line in lines[-5:] if "STARTING" not in line)
