"""A search on a cluster: the controller turns on a login node, or in a job, while jobs train.

Nothing here waits for a job. What was submitted is in the ledger and in the run directories, so a
controller that ends leaves its jobs at work, and the next one goes on from what they have left.
"""

import math
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from orchestrator.analysis.runs import measure
from orchestrator.analysis.text import counted
from orchestrator.errors import EnvironmentFault, OrchError
from orchestrator.evaluate import read_scores
from orchestrator.files import write_text
from orchestrator.launch import processes
from orchestrator.launch.slurm import poll, scheduler, submissions
from orchestrator.launch.slurm.scheduler import is_over
from orchestrator.launch.slurm.submit import ELSEWHERE_SECONDS, Submitted, submit_evaluation
from orchestrator.records import ENDED, Record, Score
from orchestrator.rundir import RESUMABLE, CellDir, CellState, RunFolder
from orchestrator.runs.state import may_retry, read_state
from orchestrator.runs.wait import POLL_SECONDS, SubmitRequest, start
from orchestrator.search.block import SearchObjective, is_reported
from orchestrator.search.controller import Controller, Launching, TrainingDecision
from orchestrator.search.journal import SearchJournal
from orchestrator.spec.site_options import SlurmOptions

T = TypeVar("T")

SLOWEST_SECONDS = 10.0
"""Between two looks at run directories when nothing happens; the scheduler is asked less often."""
UNKNOWN_SECONDS = 1800.0
"""How long a trial waits for a cell whose state nobody can tell; then it has failed."""
QUIET_SECONDS = 120.0
"""After which silence the controller says what it waits for."""


def on_cluster(options: SlurmOptions, tell: Callable[[str], None]) -> Launching:
    """How states of a cluster are read: what its retry policy allows is trained again, and a state
    that cannot be told is waited for."""
    since: dict[str, float] = {}

    def verdict(cell_dir: CellDir, seen: CellState) -> TrainingDecision:
        if seen.state in RESUMABLE or seen.state == "failed":
            return "train" if may_retry(cell_dir, seen, options) else "over"
        if seen.state != "unknown":
            since.pop(cell_dir.id, None)
        elif cell_dir.id not in since:
            since[cell_dir.id] = time.monotonic()
            tell(f"{cell_dir.slug}: {seen.fault}; its trial waits")
        elif time.monotonic() > since[cell_dir.id] + UNKNOWN_SECONDS:
            return "over"
        return "over" if seen.state in ENDED else "wait"

    return Launching(verdict, once=False)


def search_there(controller: Controller, options: SlurmOptions, *, evaluate: bool) -> bool:
    """Drives the searches to their end; False if a person stopped it first: jobs go on.

    evaluate: every cell's evaluation is a job that follows its training. Raises OrchError as
    `submit` does.
    """
    controller.folder.open()
    request = SubmitRequest((), controller.folder, options, evaluate, controller.tell)
    refused = SubmissionPatience(controller.tell)
    pause, quiet = POLL_SECONDS, time.monotonic()
    with processes.Stop().listening() as stop, controller.journal.controlling():
        while not stop.asked:
            before = len(controller.open)
            wanted = refused.unless(controller.turn)
            if wanted:
                sent = refused.unless(partial(start, request._replace(cells=wanted)))
                _tell_sent(sent, controller.tell)
            elif wanted is not None and controller.done:
                break
            stirs = bool(wanted) or len(controller.open) != before
            pause = POLL_SECONDS if stirs else min(pause * 1.2, SLOWEST_SECONDS)
            if stirs:
                quiet = time.monotonic()
            elif time.monotonic() > quiet + QUIET_SECONDS:
                quiet = time.monotonic()
                controller.tell(_standing(controller))
            deadline = time.monotonic() + pause
            while time.monotonic() < deadline and not stop.asked:
                time.sleep(0.25)
        return not stop.asked


def _tell_sent(sent: Submitted | None, tell: Callable[[str], None]) -> None:
    if sent and sent.cells:
        tell(
            f"submitted {counted(len(sent.cells), 'cell')} as "
            f"{counted(len(sent.jobs), 'job array')}: {', '.join(sent.jobs)}"
        )
    if sent and sent.left:
        tell(
            f"{counted(len(sent.left), 'cell')} left for when the queue has room "
            "(site.options.max_submit_jobs)"
        )


def _standing(controller: Controller) -> str:
    """What is under way, in a line."""
    states = Counter(
        read_state(controller.folder.cell(cell)).state
        for trial in controller.open.values()
        for cell in trial.cells
    )
    listed = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
    return f"{counted(len(controller.open), 'trial')} under way; cells: {listed or 'none'}"


class SubmissionPatience:
    """Patience with another orch that is submitting: its intent may be of a dead one of another
    machine, which is known only after a while."""

    def __init__(self, tell: Callable[[str], None]):
        self._tell, self._since = tell, 0.0

    def unless(self, asked: Callable[[], T]) -> T | None:
        """What it gives; None while another is at it. Raises what is of another kind or lasts."""
        try:
            given = asked()
        except OrchError as error:
            if type(error) is not OrchError:
                raise
            if not self._since:
                self._since = time.monotonic()
                self._tell(f"{error}; asking again")
            if time.monotonic() > self._since + 2 * ELSEWHERE_SECONDS:
                raise
            return None
        self._since = 0.0
        return given


# The controller as a small job of its own, for clusters where nothing may live on a login node.


MEMORY_GIB = 4
STOP_SECONDS = 60
"""How long before its time limit it is told to stop asking."""


def detach(
    arguments: Sequence[str], journal: SearchJournal, options: SlurmOptions
) -> tuple[str, Path]:
    """Submits `orch ARGUMENTS` from this folder; the job's id and the file of its words.

    Raises EnvironmentFault where SLURM refuses or does not answer.
    """
    script, log = journal.path / "controller.sh", journal.path / "controller.log"
    write_text(script, text(arguments, journal.path.name, log, options))
    try:
        job = scheduler.call(["sbatch", "--parsable", f"--chdir={Path.cwd()}", str(script)])
    except (scheduler.SchedulerUnavailable, scheduler.SchedulerRefusal) as error:
        raise EnvironmentFault(
            f"the controller could not be submitted: {error}. Nothing of the search has begun; "
            "without --submit it runs here, in tmux for instance"
        ) from error
    return job.strip().partition(";")[0], log


def text(arguments: Sequence[str], name: str, log: Path, options: SlurmOptions) -> str:
    """The script: one core. What it submits must not inherit what SLURM told it of itself."""
    flags = {
        "job-name": f"orch-tune-{name}",
        "output": "/dev/null",
        "error": "/dev/null",
        "ntasks": 1,
        "cpus-per-task": 1,
        "mem": f"{MEMORY_GIB}G",
        "time": max(1, math.ceil(options.time_limit_hours * 60)),
        "signal": f"B:TERM@{STOP_SECONDS}",
        "partition": options.partition,
        "account": options.account,
        "qos": options.qos,
    }
    lines = [f"#SBATCH --{flag}={value}" for flag, value in flags.items() if value is not None]
    command = shlex.join([options.python or sys.executable, "-m", "orchestrator", *arguments])
    return "\n".join(
        [
            "#!/bin/bash",
            *lines,
            "#SBATCH --requeue",
            f"exec >> {shlex.quote(str(log))} 2>&1",
            (
                "for name in ${!SLURM_*} ${!SBATCH_*}; do "
                '[ "$name" = SLURM_CONF ] || unset "$name"; done'
            ),
            f"exec {command}",
            "",
        ]
    )


# Evaluation on a cluster: each cell's is a job of its own, and a login node evaluates nothing.


TRIES = 2
"""Evaluations of a cell that are submitted before its trial ends without a score."""

_SKEW_SECONDS = 10.0
"""How far the clocks of two login nodes may be apart."""

JobState = Literal["scored", "coming", "missing", "given up"]


class _Sent(NamedTuple):
    """One evaluation of a cell that was submitted."""

    submission: submissions.Submission
    place: int
    """Its index in the array."""
    log: Path


def _is_busy(one: _Sent, queue: scheduler.Answer, asked: float) -> bool:
    """Whether an evaluation may still come to its end. asked: when the queue was."""
    job = one.submission.job
    if job is None or asked < one.submission.time + _SKEW_SECONDS:
        return True
    held = queue.get((job, one.place))
    return held is not None and not is_over(held.word)


class JobScorer:
    """Reads what evaluation jobs have left; submits those that are missing."""

    def __init__(
        self,
        objectives: Sequence[SearchObjective],
        folder: RunFolder,
        options: SlurmOptions,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        asked = [m for each in objectives for m in each.metrics if not is_reported(m)]
        self.metrics = tuple(dict.fromkeys(asked))
        """Those that an evaluation gives."""
        self._folder, self._options, self._tell = folder, options, tell
        self._scored: set[str] = set()
        self._manifests: dict[str, dict[str, Any]] = {}

    def ask(self, records: Sequence[Record]) -> None:
        """Submits evaluations where none is under way, as one array."""
        words = self._words(records)
        missing = [r.cell for r in records if words[r.cell.id] == "missing"]
        if missing:
            array = submit_evaluation(missing, self._folder, self._options, self._tell)
            self._tell(f"submitted the evaluation of {len(missing)} cells as job array {array}")

    def has(self, records: Sequence[Record]) -> bool:
        """Whether all of them have been scored, or could not be."""
        return all(word in ("scored", "given up") for word in self._words(records).values())

    def fault(self, records: Sequence[Record]) -> str:
        """The first that cannot be scored, and where its job's last words are."""
        words = self._words(records)
        for record in records:
            if words[record.cell.id] == "given up":
                log = self._sent()[self._folder.cell(record.cell).path.name][-1].log
                wanted = ", ".join(self.metrics)
                return f"{record.cell.slug} was evaluated {TRIES} times without {wanted}; see {log}"
        return ""

    def scores(self, records: Sequence[Record]) -> list[Score]:
        """What is on disk of these records' scores."""
        return [s for record in records for s in read_scores(self._folder.cell(record.cell))]

    def _words(self, records: Sequence[Record]) -> dict[str, JobState]:
        left = [record for record in records if not self._is_scored(record)]
        words: dict[str, JobState] = {record.cell.id: "scored" for record in records}
        if left:
            sent, seen = self._sent(), poll.snapshot(self._folder)
            queue, asked = seen.queued(), time.time() - (time.monotonic() - seen.made)
            for record in left:
                own = sent.get(self._folder.cell(record.cell).path.name, [])
                busy = queue is None or any(_is_busy(one, queue, asked) for one in own)
                words[record.cell.id] = "coming" if busy else self._ended(record, own)
        return words

    def _ended(self, record: Record, own: Sequence[_Sent]) -> JobState:
        if self._is_scored(record):  # written between the two looks
            return "scored"
        # one whose training failed was never started
        tries = sum(not one.submission.follows or one.log.exists() for one in own)
        return "missing" if tries < TRIES else "given up"

    def _is_scored(self, record: Record) -> bool:
        if record.cell.id not in self._scored:
            scores = read_scores(self._folder.cell(record.cell))
            (run,) = measure([record], scores)
            if not set(self.metrics) <= run.finals.keys():
                return False
            self._scored.add(record.cell.id)
        return True

    def _sent(self) -> dict[str, list[_Sent]]:
        """Directory of a cell -> its evaluations, oldest first."""
        found: dict[str, list[_Sent]] = {}
        for one in submissions.read(self._folder).values():
            if one.kind != "evaluate" or one.dropped:
                continue
            if one.id not in self._manifests:
                self._manifests[one.id] = submissions.read_manifest(self._folder, one.id)
            elements = self._manifests[one.id].get("elements", ())
            place = self._folder.submission(one.id)
            for index, (name, _) in enumerate(elements):
                sent = _Sent(one, index, place / f"{one.job}_{index}.log")
                found.setdefault(name, []).append(sent)
        return found
