"""Ask SLURM about attempts that have no final exit record.

One look at a folder calls squeue at most once and sacct at most once. The queue knows every job
that has not ended. Accounting is asked only about jobs that the queue does not list as alive. A
program that does not answer is not called again during the look. An answer is kept for a while.
This module writes nothing.
"""

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path

from orchestrator.files import read_tail
from orchestrator.launch.looks import Looks
from orchestrator.launch.slurm import lease, scheduler, submissions
from orchestrator.launch.slurm.scheduler import stuck_reason
from orchestrator.records import ExitRecord, State
from orchestrator.rundir import (
    ON_CLUSTER,
    AttemptDir,
    CellDir,
    RunFolder,
    SchedulerReport,
)

PATIENCE_SECONDS = 30.0
"""Seconds that a job waits before its reason is checked."""
_YOUNG_SECONDS = 120.0
"""Seconds for which accounting may not know a job that was just submitted."""


def polled_state(
    cell_dir: CellDir, attempt: AttemptDir, ended: ExitRecord | None
) -> SchedulerReport | None:
    """Return the state of a cell whose last attempt was submitted but has no final exit record.

    ended: an exit record with state preempted or timed_out: the job may be in the queue again.
    Return None if the submission was refused or never sent: then nothing works on the attempt.
    """
    order = attempt.read_order()
    folder = RunFolder(cell_dir.path.parents[1])
    answer = LOOKS.of(folder)
    # A submission that is younger than the answer is only in the ledger.
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
    report = answer.report(submission, index, attempt)
    if ended is None and report.state == "running":
        # The last start of the job may have made no attempt yet.
        silence = lease.silence_of(attempt, answer.at_work_since(submission, index))
        return report._replace(fault=lease.frozen(attempt, silence, "SLURM"))
    if ended is None or report.state in ON_CLUSTER:
        return report
    if report.state == "cancelled":
        return report._replace(fault="")
    if answer.queued is None:
        return SchedulerReport("unknown", ended, report.fault)  # it may be in the queue again
    return SchedulerReport(ended.state, ended)


def polled_element(
    folder: RunFolder, submission: submissions.Submission, index: int
) -> SchedulerReport:
    """Return SLURM's report on one element of a submission that was sent."""
    return LOOKS.of(folder).report(submission, index)


def stuck_jobs(folder: RunFolder, options: Mapping[str, object]) -> list[str]:
    """Return why jobs wait that will never start: one sentence per reason, with the number of jobs.

    options: `site.options`, for the values in the sentences. A job that is held is named, with the
    command that lets it go.
    """
    answer = LOOKS.of(folder)
    late = time.time() - PATIENCE_SECONDS
    waiting: dict[str, Counter[str]] = {}
    for (job, _), element in (answer.queued or {}).items():
        is_late = answer.by_job[job].time < late or scheduler.is_held(element.reason)
        if is_late and scheduler.is_waiting(element.word):
            waiting.setdefault(element.reason, Counter())[job] += 1
    sentences: Counter[str] = Counter()
    for reason, jobs in waiting.items():
        message = stuck_reason(reason, options, " ".join(jobs))
        if message is not None:
            sentences[message.sentence] += jobs.total()
    return [
        f"{count} job{'s wait' if count > 1 else ' waits'}: {why}"
        for why, count in sentences.items()
    ]


class SchedulerSnapshot:
    """One answer of the scheduler about a folder's jobs: one squeue and one sacct at most.

    Each command is called when its answer is first needed, and only once, even if it does not
    answer.
    """

    def __init__(self, folder: RunFolder):
        self.folder = folder
        self.submissions = submissions.read(folder)
        self.by_job = {str(s.job): s for s in self.submissions.values() if s.job}
        self.fault = ""
        """A sentence that names the command that does not answer."""

    @cached_property
    def queued(self) -> scheduler.Answer | None:
        """Return the elements of this folder's arrays in the queue, of every user who submitted.

        Return None while squeue does not answer.
        """
        users = {str(os.geteuid() if s.uid is None else s.uid) for s in self._alive()}
        # Without a submission that may be in the queue, squeue is not called.
        return self._asked("the scheduler", partial(scheduler.queue, users)) if users else {}

    @cached_property
    def accounted(self) -> scheduler.Answer:
        """Return the elements that sacct lists; none while it does not answer."""
        jobs = [str(s.job) for s in self._alive()]
        return self._asked("accounting", partial(scheduler.accounting, jobs)) or {}

    def _alive(self) -> list[submissions.Submission]:
        return [s for s in self.by_job.values() if not s.drained]

    def _asked(self, who: str, ask: Callable[[], scheduler.Answer]) -> scheduler.Answer | None:
        try:
            return {key: each for key, each in ask().items() if self._is_ours(key, each)}
        except (scheduler.SchedulerUnavailable, scheduler.SchedulerRefusal) as error:
            self.fault = self.fault or f"{who} does not answer ({error})"
            return None

    def _is_ours(self, key: tuple[str, int], element: scheduler.ArrayElement) -> bool:
        """Return True if the job with the right id also has the right name.

        Another cluster, or a controller that lost its state, gives the same ids to other jobs.
        """
        sent = self.by_job.get(key[0])
        return sent is not None and element.name in ("", sent.name)

    def report(
        self, submission: submissions.Submission, index: int, attempt: AttemptDir | None = None
    ) -> SchedulerReport:
        """Return the report of one element of a submission that was sent.

        attempt: the one that the element works on, if it is of training.
        """
        key = str(submission.job), index
        queue = self.queued
        queued = queue.get(key) if queue is not None else None
        if queued is not None and queued.word not in scheduler.OVER:
            return SchedulerReport(scheduler.state_of(queued))
        accounted = self.accounted.get(key)
        if accounted is not None and accounted.word not in scheduler.OVER:
            if queue is None or (queued is None and self._may_be_unseen(submission, attempt)):
                return SchedulerReport(scheduler.state_of(accounted))
            if queued is None:
                why = f"the queue does not know it, although it is {accounted.word} in accounting"
                return _forgotten(*key, why)
            accounted = None  # the controller knows more: accounting has not heard of the end
        if queue is None:
            return SchedulerReport("unknown", fault=f"{self.fault}; ask again when it does")
        if accounted is None and queued is not None:
            if self._is_accounting_late(queued):
                return SchedulerReport("running")
            accounted = queued
        if accounted is not None:
            ended = scheduler.ending_of(accounted, _last_lines(self._log(submission, index)))
            # SLURM may put a job back into the queue that it has stopped.
            waiting: State = "pending" if accounted.word in scheduler.STOPPED else "running"
            return SchedulerReport(ended.state if ended else waiting, ended)
        return self._unlisted(submission, index)

    def _may_be_unseen(
        self, submission: submissions.Submission, attempt: AttemptDir | None
    ) -> bool:
        """Return True if the queue may have a job and not list it: it is too new, another user's
        or another cluster's; or if its worker lives, which the controller will end."""
        silent = lease.silence_of(attempt) if attempt else None
        age = time.time() - submission.time
        young = min(age, math.inf if silent is None else silent) < _YOUNG_SECONDS
        return young or not submission.is_mine or self._is_elsewhere(submission)

    def _unlisted(self, submission: submissions.Submission, index: int) -> SchedulerReport:
        """Return the report of an element that neither the queue nor accounting lists."""
        job = str(submission.job)
        if self._knows(job) and not self._log(submission, index).exists():
            # SLURM keeps no record of an element that was cancelled alone while it waited.
            why = f"cancelled in the scheduler (scancel {job}_{index}) before it started"
            return _over("cancelled", "", why)
        if not self.fault and time.time() - submission.time < _YOUNG_SECONDS:
            return SchedulerReport("submitted")
        # The sentence names no cell: `orch status` prints it once for all cells of an array.
        if self.fault:
            fault = (
                f"job {job} is not in the queue, and {self.fault}. If it stays so, `orch "
                "cancel` and `orch retry` submit the cell again"
            )
        elif not submission.is_mine or self._is_elsewhere(submission):
            user = submission.user or f"user {submission.uid}"
            place = f" on the cluster {submission.cluster}" if submission.cluster else ""
            fault = (
                f"submitted by {user} as job {job}, not visible to you: {user} can look{place} "
                "and go on; `orch cancel` and `orch retry` submit the cell again as yours"
            )
        else:
            return _forgotten(job, index, "neither the queue nor accounting knows it")
        return SchedulerReport("unknown", fault=fault)

    def at_work_since(self, submission: submissions.Submission, index: int) -> float:
        """Return the start of an element, by the queue.

        Return the present time if it is not RUNNING (for example SUSPENDED) or if the queue has no
        time.
        """
        element = (self.queued or {}).get((str(submission.job), index))
        if element is None or element.word != "RUNNING" or not element.started:
            return time.time()
        return element.started

    def _is_elsewhere(self, submission: submissions.Submission) -> bool:
        return bool(submission.cluster) and submission.cluster != self._cluster

    @cached_property
    def _cluster(self) -> str:
        """Return this cluster's name; empty if the controller does not answer."""
        try:
            return scheduler.config().get("ClusterName", "")
        except (scheduler.SchedulerUnavailable, scheduler.SchedulerRefusal):
            return ""

    def _log(self, submission: submissions.Submission, index: int) -> Path:
        """Return the file with the element's output. SLURM creates it when it starts the
        element."""
        return self.folder.submission(submission.id) / f"{submission.job}_{index}.log"

    def _is_accounting_late(self, queued: scheduler.ArrayElement) -> bool:
        """Return True if accounting may still list the exit code of a job that has ended."""
        late = time.time() - (queued.ended or 0.0) < scheduler.LATE_SECONDS
        return late and not self.fault and queued.word != "CANCELLED"

    def _knows(self, job: str) -> bool:
        """Return True if any element of an array is listed: then SLURM knows the submission."""
        return any(
            array == job for answer in (self.queued or {}, self.accounted) for array, _ in answer
        )


def _over(state: State, failure: str, why: str) -> SchedulerReport:
    now = time.time()
    record = ExitRecord(state=state, failure=failure, message=why, started=now, ended=now)
    return SchedulerReport(state, record)


def _forgotten(job: str, index: int, why: str) -> SchedulerReport:
    """Return the report of a job that the queue does not know, and whose end accounting will not
    hear of: the controller has crashed and forgotten it. If it starts nevertheless, it finds that
    its cell belongs to another submission."""
    return _over("failed", "lost", f"the scheduler has forgotten job {job}_{index}: {why}")


LOOKS = Looks(SchedulerSnapshot, 15.0)
"""The scheduler's answer about each folder."""


@contextmanager
def one_look(folder: RunFolder) -> Iterator[None]:
    """Answer every question about a folder from one answer of the scheduler."""
    with LOOKS.one():
        LOOKS.of(folder)
        yield


def _last_lines(log: Path) -> str:
    lines = read_tail(log, 2000).decode(errors="replace").strip().splitlines()
    return "\n".join(line for line in lines[-5:] if "STARTING" not in line)
