"""Train several cells in one process, if their backend can train many at once.

The cells share the process, but each has its own attempt, claim, job.json and exit record. If a
cell ends, fails or is cancelled, the others continue. A signal that ends the process ends the
attempts of all remaining cells; they resume like any other attempt.
"""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import IO, NamedTuple, Protocol

from orchestrator import plugins
from orchestrator.errors import OrchError
from orchestrator.launch import worker
from orchestrator.launch.endings import Ending, Stopped, disk_full_error, ending_of
from orchestrator.library.protocol import SharedProcess
from orchestrator.records import AttemptPaths, Cell, ExitRecord, Outcome, State
from orchestrator.rundir import RESUMABLE, AttemptDir, CellDir, RunFolder

ASKS_TO_STOP: Mapping[int, State] = {signal.SIGTERM: worker.STOP_SIGNALS[signal.SIGTERM]}
"""SIGINT cancels one of the cells, not the process."""


class Tell(Protocol):
    """A function that reports an event of a submission to orch."""

    def __call__(self, submission: str, **message: object) -> None:
        """Report one event of a submission."""


class Member(NamedTuple):
    """A cell of the process, with its own attempt."""

    submission: str
    cell: Cell
    cell_dir: CellDir
    attempt: AttemptDir
    claim: IO[str]

    @property
    def job(self) -> Mapping[str, object]:
        """Return the entries of job.json that say who started the cell."""
        return {"submission": self.submission, "launcher": "local"}


class SharedCells:
    """The cells in training, as the `watch` of their backend's entry.

    The entry reports ends and lines of log to it, and reads from it which cells must stop.
    """

    def __init__(self, folder: RunFolder, tell: Tell, stop: worker.StopSignals):
        self._members: list[Member] = []
        self._folder, self._tell, self._stop = folder, tell, stop
        self._left: set[int] = set()
        self._started, self._cpu = time.time(), worker.cpu_seconds()
        self._asked = False
        signal.signal(signal.SIGINT, self._ask)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self._asked = True

    def begin(self, member: Member) -> AttemptPaths | None:
        """Write the files that a cell needs before its training. Return the paths of its files.

        Return None if the cell cannot begin: then its exit record says why.
        """
        number = len(self._members)
        self._members.append(member)
        self._left.add(number)
        try:
            paths, _ = worker.begin(
                member.cell, member.cell_dir, member.attempt, member.job, time.time()
            )
        except Exception as error:  # of this cell alone
            self.ended(number, error)
            self._members.pop()
            return None
        note_start(member, self._folder, self._tell)
        return paths

    def ended(self, number: int, result: Outcome | Exception) -> None:
        """Write the exit record of a cell that was trained or that failed."""
        attempt = self._members[number].attempt
        if isinstance(result, Outcome):
            self._close(number, Ending("succeeded", code=0, outcome=result))
            return
        if full := disk_full_error(result, attempt.path):
            raise full from result
        if not isinstance(result, OrchError):
            with attempt.stderr.open("a", encoding="utf-8") as file:
                traceback.print_exception(result, file=file)
        self._close(number, ending_of(result))

    def leaving(self) -> Collection[int]:
        """Return the cells that a person has cancelled since the last call.

        Raise Stopped if the process was interrupted and no cell is cancelled.
        """
        if not self._asked:
            return ()
        # Reset before the look: the next call sees a request that comes during it.
        self._asked = False
        cancelled = [n for n in self._left if self._members[n].attempt.cancel_reason.exists()]
        if not cancelled:
            raise Stopped("cancelled")
        for number in cancelled:
            why = self._members[number].attempt.cancel_reason.read_text()
            self._close(number, Ending("cancelled", message=why))
        return cancelled

    def say(self, number: int, line: str) -> None:
        """Write a line to the cell's own stdout."""
        with self._members[number].attempt.stdout.open("a", encoding="utf-8") as file:
            file.write(line)

    def stop(self, error: Stopped) -> None:
        """Write the exit records of all remaining cells, in a process that is asked to stop."""
        for number in sorted(self._left):
            self._close(number, ending_of(error))

    def _close(self, number: int, ending: Ending) -> None:
        member = self._members[number]
        # The process has one count of CPU time, so each cell gets an equal share.
        share = (worker.cpu_seconds() - self._cpu) / len(self._members)
        record = ending.record(self._started, time.time())
        record = record.model_copy(update={"cpu_seconds": round(share, 3)})
        with self._stop.deferring():
            # Before the record: after an interrupt, `stop` must not end this cell a second time.
            self._left.discard(number)
            note_end(member, self._folder, record)
            # After the record: a free claim without a record means that the worker was killed.
            member.claim.close()
            self._tell(member.submission, finished=True)


def train_cells(
    orders: Sequence[tuple[str, str]], path: Path, tell: Tell, stop: worker.StopSignals
) -> None:
    """Train the cells that still need training and that no other process holds.

    orders: for each cell, its submission and the cell as JSON.
    """
    folder = RunFolder(path)
    claims = (claimed(name, Cell.model_validate_json(text), folder, tell) for name, text in orders)
    members = [member for member in claims if member is not None]
    if not members:
        return
    # One process has one stdout: what libraries print goes to the first cell. The lines of each
    # cell itself come through `say`.
    worker.redirect(members[0].attempt)
    group = SharedCells(folder, tell, stop)
    try:
        with stop.interrupting():
            begun = [(member.cell, group.begin(member)) for member in members]
            places = [(cell, paths) for cell, paths in begun if paths is not None]
            if places:
                _entry(members[0].cell)(places, group)
    except Stopped as error:
        group.stop(error)


def claimed(submission: str, cell: Cell, folder: RunFolder, tell: Tell) -> Member | None:
    """Return a cell with a new attempt, or None if it needs no training here."""
    cell_dir = folder.cell(cell)
    cell_dir.make(cell)
    claim = cell_dir.take_claim()
    if claim is None:
        tell(submission, held=True)
        return None
    # orch decided without the claim: since then another may have trained or cancelled the cell
    if cell_dir.state(claimed=True).state not in RESUMABLE:
        claim.close()
        tell(submission, settled=True)
        return None
    attempt = cell_dir.open_attempt()
    for output in (attempt.stdout, attempt.stderr):
        output.touch()
    return Member(submission, cell, cell_dir, attempt, claim)


def note_start(member: Member, folder: RunFolder, tell: Tell) -> None:
    """Append to the ledger, and report, that a cell has its job.json."""
    names = {"submission": member.submission, "attempt": member.attempt.number}
    folder.append("started", member.cell.id, pid=os.getpid(), **names)
    tell(member.submission, started=member.attempt.number)


def note_end(member: Member, folder: RunFolder, record: ExitRecord) -> None:
    """Write the exit record, which alone decides. A kill before the next line costs only that line
    in the ledger."""
    member.attempt.write_exit(record)
    names = {"submission": member.submission, "attempt": member.attempt.number}
    folder.append("ended", member.cell.id, state=record.state, failure=record.failure, **names)


def shared_process(cell: Cell) -> SharedProcess | None:
    """Return how a backend trains many cells in one process; None for one that does not."""
    trainer = plugins.load_embedded(cell.settings.backend.name)
    return trainer.shared_process if trainer else None


def _entry(cell: Cell) -> Callable[..., None]:
    """Return the function with which the cell's backend trains many cells."""
    shared = shared_process(cell)
    if shared is None:
        raise TypeError(f"backend {cell.settings.backend.name} trains one cell at a time")
    module, _, function = shared.entry.partition(":")
    sys.stdout.flush()
    entry: Callable[..., None] = getattr(import_module(module), function)
    return entry
