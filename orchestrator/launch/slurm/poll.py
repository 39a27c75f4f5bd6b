"""The state of a cell whose worker has not written a last word: what the scheduler says of it.

The scheduler is asked once for all jobs of a folder and the answer kept for a while, longer each
time nothing changed: looking at 10,000 cells costs one sacct. The queue is asked where accounting
is away, does not know a job yet, or says that one ended whose worker has not said so. Nothing here
writes.
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
from orchestrator.launch.slurm import scheduler as words
from orchestrator.launch.slurm.lease import has_helper
from orchestrator.records import ExitRecord, State
from orchestrator.rundir import ON_CLUSTER, AttemptDir, CellDir, RunFolder, SchedulerReport

FIRST_SECONDS, LONGEST_SECONDS = 4.0, 60.0
_FRESH_SECONDS = 1.0
_YOUNG_SECONDS = 120.0
"""How long accounting may not know of a job that was just submitted."""
_SKEW_SECONDS = 3600.0
"""How far the clocks of a login node and of the controller may be apart."""


class SchedulerSnapshot:
    """One answer of the scheduler about a folder's jobs."""

    def __init__(self, folder: RunFolder):
        self.folder = folder
        self.jobs = {s.id: s for s in submissions.read(folder).values()}
        self.made = time.monotonic()
        self._accounted: scheduler.Answer | None = None
        self._queued: scheduler.Answer | None = None
        self.fault = ""

    def accounted(self) -> scheduler.Answer:
        if self._accounted is None:
            wanted = [s.job for s in self.jobs.values() if s.job and not s.drained]
            try:
                self._accounted = scheduler.accounting(wanted)
            except scheduler.SchedulerUnavailable as error:
                self._accounted, self.fault = {}, f"accounting does not answer ({error})"
        return self._accounted

    def queued(self) -> scheduler.Answer | None:
        """None while the queue cannot be asked."""
        if self._queued is None:
            try:
                self._queued = scheduler.queue()
            except (scheduler.SchedulerUnavailable, scheduler.SchedulerRefusal) as error:
                self.fault = f"the scheduler does not answer ({error})"
        return self._queued

    def asked(self) -> tuple[object, object]:
        return self._accounted, self._queued

    def seen(self, job: str, index: int, sent: float, log: Path) -> SchedulerReport:
        """One element. log: what it prints; there from the moment it is started."""
        found = self.accounted().get((job, index))
        if found is not None and 0 < found.submitted < sent - _SKEW_SECONDS:
            found = None  # of another job: ids begin again when a controller loses its state
        if found is not None and not words.is_over(found.word):
            return SchedulerReport(words.state_of(found))
        queue = self.queued()
        if queue is None:
            return SchedulerReport("unknown", fault=f"{self.fault}; ask again when it does")
        held = queue.get((job, index))
        if held is not None and not words.is_over(held.word):
            return SchedulerReport(words.state_of(held))
        if found is None and held is not None:
            if self._will_be_told(held):
                return SchedulerReport("running")
            found = held
        if found is not None:
            ended = words.ending_of(found, _last_words(log))
            waiting: State = "pending" if found.word in words.STOPPED else "running"
            return SchedulerReport(ended.state if ended else waiting, ended)
        if self._knows(job) and not log.exists():
            return words.withdrawn(job, index)
        if not self.fault and time.time() - sent < _YOUNG_SECONDS:
            return SchedulerReport("submitted")
        if not self.fault:
            return words.forgotten(job, index)
        return SchedulerReport(
            "unknown",
            fault=f"job {job}_{index} is not in the queue, and {self.fault}. If it stays so, `orch "
            "cancel` and `orch retry` submit the cell again",
        )

    def _will_be_told(self, held: scheduler.ArrayElement) -> bool:
        """Whether accounting is only late with the exit code of a job that has ended."""
        late = time.time() - (held.ended or 0.0) < words.LATE_SECONDS
        return late and not self.fault and held.word != "CANCELLED"

    def _knows(self, job: str) -> bool:
        """Whether other elements of an array are known: then its submission reached everybody."""
        return any(
            array == job
            for answer in (self.queued() or {}, self.accounted())
            for array, _ in answer
        )


_snapshots: dict[Path, SchedulerSnapshot] = {}
_gaps: dict[Path, float] = {}


def forget() -> None:
    """Asks again at the next look: something was submitted or cancelled."""
    _snapshots.clear()
    _gaps.clear()


def refresh(folder: RunFolder) -> None:
    """Asks again at the next look, unless the answer is of this moment: before a decision."""
    held = _snapshots.get(folder.path)
    if held is not None and time.monotonic() - held.made > _FRESH_SECONDS:
        del _snapshots[folder.path]


def scheduler_snapshot(folder: RunFolder) -> SchedulerSnapshot:
    """The scheduler's answer, not older than a few seconds; a minute when nothing changes."""
    held = _snapshots.get(folder.path)
    if held is not None and time.monotonic() - held.made < _gaps.get(folder.path, FIRST_SECONDS):
        return held
    made = SchedulerSnapshot(folder)
    if held is not None:
        made.accounted()
        same = made.asked()[0] == held.asked()[0]
        gap = _gaps.get(folder.path, FIRST_SECONDS) * 1.5 if same else FIRST_SECONDS
        _gaps[folder.path] = min(gap, LONGEST_SECONDS) * random.uniform(0.9, 1.1)  # noqa: S311  (jitter)
    _snapshots[folder.path] = made
    return made


def polled_element(folder: RunFolder, sent: submissions.Submission, index: int) -> SchedulerReport:
    """One element of a submission that is in the ledger."""
    log = folder.submission(sent.id) / f"{sent.job}_{index}.log"
    return scheduler_snapshot(folder).seen(str(sent.job), index, sent.time, log)


def polled_state(
    cell_dir: CellDir, attempt: AttemptDir, ended: ExitRecord | None
) -> SchedulerReport | None:
    """What to say of a cell whose last attempt was submitted and has no final word.

    ended: an exit.json that says preempted or timed_out: the job may be in the queue again. None
    where its submission was refused or never sent: then nothing is at work on it.
    """
    order = _head(attempt)
    folder = RunFolder(cell_dir.path.parents[1])
    taken = scheduler_snapshot(folder)
    submission = taken.jobs.get(order["submission"]) or submissions.read(folder).get(
        order["submission"]
    )
    if submission is None:
        return SchedulerReport(
            "unknown",
            ended,
            f"{attempt.order} names a submission that is not in {folder.ledger}: it was removed "
            "or cut. Remove the attempt's folder to submit the cell again",
        )
    if submission.dropped:
        return None
    if submission.job is None:
        return SchedulerReport("submitted", ended)
    log = folder.submission(submission.id) / f"{submission.job}_{order['index']}.log"
    report = taken.seen(submission.job, order["index"], submission.time, log)
    if (
        ended is None
        and report.state != "running"
        and has_helper(attempt, f"{submission.job}_{order['index']}")
    ):
        return SchedulerReport("running")
    if ended is None or report.state in ON_CLUSTER:
        return report
    if report.state == "cancelled":
        return report._replace(fault="")
    if taken.queued() is None:
        return SchedulerReport("unknown", ended, report.fault)  # it may be in the queue again
    if time.time() - ended.ended < words.LATE_SECONDS:
        return SchedulerReport("pending")  # it puts itself back into the queue
    return SchedulerReport(ended.state, ended)


_HEAD = re.compile(rb'\{"submission": "(\w+)", "index": (\d+), "cell": ')


def _head(attempt: AttemptDir) -> Mapping[str, Any]:
    """Submission and index of an order, which stand before the cell: that is not parsed."""
    try:
        with attempt.order.open("rb") as file:
            hit = _HEAD.match(file.read(128))
    except OSError:
        hit = None
    if hit is None:
        return attempt.read_order()
    return {"submission": hit[1].decode(), "index": int(hit[2])}


def _last_words(log: Path) -> str:
    lines = read_tail(log, 2000).decode(errors="replace").strip().splitlines()
    return "\n".join(line for line in lines[-5:] if "STARTING" not in line)


# Jobs that wait and will not start by waiting: the scheduler's reason as a sentence.


PATIENCE_SECONDS = 30.0
"""How long a job may wait before its reason is looked at."""


def stuck_jobs(folder: RunFolder, options: Mapping[str, object]) -> list[str]:
    """One sentence a reason, with the number of jobs. options: `site.options`, for their values.

    Accounting keeps the last reason that was neither priority nor resources, also when it is over:
    only where that is a reason not to start, the queue is asked whether it holds. That is a call
    more.
    """
    from orchestrator.launch.slurm.scheduler import stuck_reason as meaning

    taken = scheduler_snapshot(folder)
    mine = {s.job for s in taken.jobs.values() if s.job and not s.drained}
    since = time.time() - PATIENCE_SECONDS
    late = {
        e.reason
        for e in taken.accounted().values()
        if e.word in scheduler.WAITING and e.submitted < since
    }
    if not mine or not (taken.fault or any(meaning(reason, options) for reason in late)):
        return []
    queue = taken.queued() or {}
    reasons = Counter(
        e.reason for (job, _), e in queue.items() if job in mine and e.word in scheduler.WAITING
    )
    told: Counter[str] = Counter()
    for reason, count in reasons.items():
        if (found := meaning(reason, options)) is not None:
            told[found.sentence] += count
    return [
        f"{count} job{'s wait' if count > 1 else ' waits'}: {what}" for what, count in told.items()
    ]
