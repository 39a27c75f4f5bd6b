"""A search on a cluster. The controller runs on a login node or in a job, while other jobs train.

No function waits for a job. The ledger and the run directories record what was submitted. So if a
controller ends, its jobs continue, and the next controller continues from their results. Each
cell's evaluation is a separate job: a login node evaluates nothing.
"""

import math
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from orchestrator.analysis.runs import measure
from orchestrator.analysis.text import counted
from orchestrator.errors import EnvironmentFault, OrchError
from orchestrator.evaluate import read_scores
from orchestrator.files import write_text
from orchestrator.launch import processes
from orchestrator.launch.slurm import scheduler
from orchestrator.launch.slurm.flags import CPU_FLAGS, MEMORY_FLAGS, as_arguments, site_flags
from orchestrator.launch.slurm.script import directives
from orchestrator.launch.slurm.submit import ELSEWHERE_SECONDS, Submitted, submit_evaluation
from orchestrator.records import ENDED, Record, Score, State
from orchestrator.rundir import RESUMABLE, CellDir, CellState, RunFolder
from orchestrator.runs.evaluation_jobs import (
    EvaluationState,
    last_evaluations,
    may_repeat,
    record_ends,
)
from orchestrator.runs.state import may_retry, read_state
from orchestrator.runs.wait import POLL_SECONDS, SubmitRequest, start
from orchestrator.search.block import TuneBlock
from orchestrator.search.controller import Controller, DriverRules, TrainingDecision
from orchestrator.search.journal import SearchJournal
from orchestrator.spec.site_options import SlurmOptions

T = TypeVar("T")

MAX_PAUSE_SECONDS = 10.0
"""Longest pause between two ticks when nothing happens."""
UNKNOWN_SECONDS = 1800.0
"""Seconds that a trial waits for a cell whose state is unknown. After that the trial has failed."""
QUIET_SECONDS = 120.0
"""Seconds without a message after which the controller prints what it waits for."""


def cluster_rules(options: SlurmOptions, tell: Callable[[str], None]) -> DriverRules:
    """Return the rules by which states of a cluster are read.

    A cell is trained again if its retry policy allows it. A cell of unknown state is waited
    for, at most UNKNOWN_SECONDS.
    """
    unknown_since: dict[str, float] = {}

    def decide(cell_dir: CellDir, state: CellState) -> TrainingDecision:
        if state.state in RESUMABLE or state.state == "failed":
            return "train" if may_retry(cell_dir, state, options) else "over"
        if state.state != "unknown":
            unknown_since.pop(cell_dir.id, None)
        elif cell_dir.id not in unknown_since:
            unknown_since[cell_dir.id] = time.monotonic()
            tell(f"{cell_dir.slug}: {state.fault}; its trial waits")
        elif time.monotonic() > unknown_since[cell_dir.id] + UNKNOWN_SECONDS:
            return "over"
        return "over" if state.state in ENDED else "wait"

    return DriverRules(decide, once=False)


def search_on_cluster(controller: Controller, options: SlurmOptions, *, evaluate: bool) -> bool:
    """Drive the searches to their end. Return False if a person stopped them first; jobs then
    continue.

    evaluate: True if each cell's evaluation is a job that follows its training. Raise OrchError as
    `submit` does.
    """
    controller.folder.open()
    request = SubmitRequest((), controller.folder, options, evaluate, controller.tell)
    patience = SubmissionPatience(controller.tell)
    pause, quiet_since = POLL_SECONDS, time.monotonic()
    with processes.Stop().listening() as stop:
        while not stop.asked:
            before = len(controller.open)
            wanted = patience.call(controller.tick)
            if wanted:
                submitted = patience.call(partial(start, request._replace(cells=wanted)))
                _report_submitted(submitted, controller.tell)
            elif wanted is not None and controller.done:
                break
            is_active = bool(wanted) or len(controller.open) != before
            pause = POLL_SECONDS if is_active else min(pause * 1.2, MAX_PAUSE_SECONDS)
            if is_active:
                quiet_since = time.monotonic()
            elif time.monotonic() > quiet_since + QUIET_SECONDS:
                quiet_since = time.monotonic()
                controller.tell(_progress(controller))
            deadline = time.monotonic() + pause
            while time.monotonic() < deadline and not stop.asked:
                time.sleep(0.25)
        return not stop.asked


def _report_submitted(submitted: Submitted | None, tell: Callable[[str], None]) -> None:
    if submitted and submitted.cells:
        tell(
            f"submitted {counted(len(submitted.cells), 'cell')} as "
            f"{counted(len(submitted.jobs), 'job array')}: {', '.join(submitted.jobs)}"
        )
    if submitted and submitted.no_room:
        tell(
            f"{counted(len(submitted.no_room), 'cell')} left for when the queue has room "
            "(site.options.max_submit_jobs)"
        )


def _progress(controller: Controller) -> str:
    """Return a line on the cells that are under way."""
    states = Counter(
        read_state(controller.folder.cell(cell)).state
        for trial in controller.open.values()
        for cell in trial.cells
    )
    numbers = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
    return f"{counted(len(controller.open), 'trial')} under way; cells: {numbers or 'none'}"


class SubmissionPatience:
    """A wait for another process of orch that is submitting.

    That process may have died on another machine. This is known only after ELSEWHERE_SECONDS.
    """

    def __init__(self, tell: Callable[[str], None]):
        self._tell, self._since = tell, 0.0

    def call(self, function: Callable[[], T]) -> T | None:
        """Return the result of the function, or None while another process of orch submits.

        Raise any other error, and also this one if it lasts too long.
        """
        try:
            result = function()
        except OrchError as error:
            # A lock that another process holds raises a plain OrchError. A subclass is an error
            # that does not go away.
            if type(error) is not OrchError:
                raise
            if not self._since:
                self._since = time.monotonic()
                self._tell(f"{error}; asking again")
            if time.monotonic() > self._since + 2 * ELSEWHERE_SECONDS:
                raise
            return None
        self._since = 0.0
        return result


# ------------------------------------------------------------------ the controller as a job


MEMORY_GIB = 4
STOP_SECONDS = 60
"""Seconds before its time limit at which SLURM signals the controller to create no more trials."""


def submit_controller(
    arguments: Sequence[str], journal: SearchJournal, options: SlurmOptions
) -> tuple[str, Path]:
    """Submit `orch ARGUMENTS` from this folder; return the job's id and its log.

    This is for clusters that allow no long process on a login node. Raise EnvironmentFault if
    SLURM refuses or does not answer.
    """
    script, log = journal.path / "controller.sh", journal.path / "controller.log"
    text = controller_script(arguments, journal.path.name, log, options)
    write_text(script, text)
    try:
        job = scheduler.sbatch(
            ["sbatch", "--parsable", f"--chdir={Path.cwd()}", *directives(text), str(script)]
        )
    except (scheduler.SchedulerUnavailable, scheduler.SchedulerRefusal) as error:
        raise EnvironmentFault(
            f"the controller could not be submitted: {error}. Nothing of the search has begun; "
            "without --submit it runs here, in tmux for instance"
        ) from error
    return job, log


def controller_script(arguments: Sequence[str], name: str, log: Path, options: SlurmOptions) -> str:
    """Return the batch script: one core, little memory.

    SLURM's variables are unset: `sbatch` would take those of the controller's own job as defaults
    for the jobs that it submits.
    """
    site = site_flags(options)
    flags: dict[str, object] = {
        "job-name": f"orch-tune-{name}",
        "output": "/dev/null",
        "error": "/dev/null",
        "ntasks": 1,
        "time": max(1, math.ceil(options.time_limit_hours * 60)),
        "signal": f"B:TERM@{STOP_SECONDS}",
        "requeue": True,
    }
    # `extra` may set CPUs or memory in another way, and SLURM refuses two ways together.
    if not site.keys() & CPU_FLAGS:
        flags["cpus-per-task"] = 1
    if not site.keys() & MEMORY_FLAGS:
        flags["mem"] = f"{MEMORY_GIB}G"
    lines = [f"#SBATCH {flag}" for flag in as_arguments({**flags, **site}, quoted=True)]
    command = shlex.join([options.python or sys.executable, "-m", "orchestrator", *arguments])
    return "\n".join(
        [
            "#!/bin/bash",
            *lines,
            f"exec >> {shlex.quote(str(log))} 2>&1",
            (
                "for name in ${!SLURM_*} ${!SBATCH_*}; do "
                '[ "$name" = SLURM_CONF ] || unset "$name"; done'
            ),
            f"exec {command}",
            "",
        ]
    )


# ------------------------------------------------------------------ evaluation

ScoringState = Literal["scored", "coming", "missing", "given up"]


class JobScorer:
    """A scorer that reads the results of evaluation jobs, and submits the missing ones.

    A failed evaluation is submitted again as `site.options.retries` allows.
    """

    def __init__(
        self,
        block: TuneBlock,
        folder: RunFolder,
        options: SlurmOptions,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.metric = block.metric if block.is_scored else ""
        """The objective's metric, if only an evaluation gives it."""
        self._folder, self._options, self._tell = folder, options, tell
        self._scored: set[str] = set()

    def request(self, records: Sequence[Record]) -> None:
        """Submit, as one array, an evaluation of each record that has no running one."""
        known = self._evaluations(records)
        missing = [r.cell for r in records if self._state(r, known) == "missing"]
        if missing:
            # An end that only the scheduler knows must count as a try.
            record_ends(self._folder, dict.fromkeys(known, "succeeded"), known)
            array = submit_evaluation(missing, self._folder, self._options, self._tell)
            self._tell(f"submitted the evaluation of {len(missing)} cells as job array {array}")

    def is_done(self, records: Sequence[Record]) -> bool:
        """Return True once each of the records has a score or could not get one."""
        known = self._evaluations(records)
        return all(self._state(record, known) in ("scored", "given up") for record in records)

    def fault(self, records: Sequence[Record]) -> str:
        """Return why the first such record cannot be scored, and the log of its last job."""
        known = self._evaluations(records)
        for record in records:
            if self._state(record, known) == "given up":
                last = known[self._folder.cell(record.cell).path.name]
                why = f" ({last.exit.failure})" if last.exit else ""
                return (
                    f"{record.cell.slug}: its evaluation gave no {self.metric}{why}; see {last.log}"
                )
        return ""

    def scores(self, records: Sequence[Record]) -> list[Score]:
        """Return the scores of these records that are on disk."""
        return [s for record in records for s in read_scores(self._folder.cell(record.cell))]

    def _evaluations(self, records: Sequence[Record]) -> dict[str, EvaluationState]:
        """Return the last evaluation of each record without a score that has one, by directory."""
        unscored = [record for record in records if not self._is_scored(record)]
        states: dict[str, State] = {
            self._folder.cell(record.cell).path.name: "succeeded" for record in unscored
        }
        return last_evaluations(self._folder, states) if states else {}

    def _state(self, record: Record, known: Mapping[str, EvaluationState]) -> ScoringState:
        if self._is_scored(record):  # perhaps written since the evaluations were read
            return "scored"
        last = known.get(self._folder.cell(record.cell).path.name)
        if last is None or may_repeat(last, self._options):
            return "missing"
        return "coming" if last.state in ("pending", "unknown") else "given up"

    def _is_scored(self, record: Record) -> bool:
        if record.cell.id not in self._scored:
            scores = read_scores(self._folder.cell(record.cell))
            (run,) = measure([record], scores)
            if self.metric and self.metric not in run.finals:
                return False
            self._scored.add(record.cell.id)
        return True
