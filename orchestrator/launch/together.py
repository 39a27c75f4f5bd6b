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
from orchestrator.records import AttemptPaths, Cell, Outcome, State
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


class SharedCells:
    """The cells in training, as the `watch` of their backend's entry.

    The entry reports ends and lines of log to it, and reads from it which cells must stop.
    """

    def __init__(
        self,
        members: Sequence[Member],
        folder: RunFolder,
        tell: Tell,
        stop: worker.StopSignals,
    ):
        self._members, self._folder, self._tell, self._stop = members, folder, tell, stop
        self._left = set(range(len(members)))
        self._started, self._cpu = time.time(), worker.cpu_seconds()
        self._asked = False
        signal.signal(signal.SIGINT, self._ask)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self._asked = True

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
        submission, cell, _, attempt, claim = self._members[number]
        # The process has one count of CPU time, so each cell gets an equal share.
        share = (worker.cpu_seconds() - self._cpu) / len(self._members)
        record = ending.record(self._started, time.time())
        record = record.model_copy(update={"cpu_seconds": round(share, 3)})
        with self._stop.deferring():
            # Before the record: after an interrupt, `stop` must not end this cell a second time.
            self._left.discard(number)
            attempt.write_exit(record)
            self._folder.append(
                "ended",
                cell.id,
                submission=submission,
                attempt=attempt.number,
                state=record.state,
                failure=record.failure,
            )
            # After the record: a free claim without a record means that the worker was killed.
            claim.close()
            self._tell(submission, finished=True)


def train_cells(
    orders: Sequence[tuple[str, str]], path: Path, tell: Tell, stop: worker.StopSignals
) -> None:
    """Train the cells that still need training and that no other process holds.

    orders: for each cell, its submission and the cell as JSON.
    """
    folder = RunFolder(path)
    members: list[Member] = []
    for submission, text in orders:
        member = _claimed(submission, Cell.model_validate_json(text), folder, tell)
        if member is not None:
            members.append(member)
    if not members:
        return
    # One process has one stdout: what libraries print goes to the first cell. The lines of each
    # cell itself come through `say`.
    worker.redirect(members[0].attempt)
    group = SharedCells(members, folder, tell, stop)
    places: dict[int, tuple[Cell, AttemptPaths]] = {}
    try:
        with stop.interrupting():
            for number, member in enumerate(members):
                try:
                    places[number] = member.cell, _begun(member, folder, tell)
                except Exception as error:  # of this cell alone
                    group.ended(number, error)
            if places:
                _entry(members[0].cell)(list(places.values()), _Renumbered(group, list(places)))
    except Stopped as error:
        group.stop(error)


class _Renumbered:
    """A group's watch, for an entry that numbers only the cells that started."""

    def __init__(self, group: SharedCells, numbers: Sequence[int]):
        self._group, self._numbers = group, numbers

    def ended(self, number: int, result: Outcome | Exception) -> None:
        self._group.ended(self._numbers[number], result)

    def leaving(self) -> Collection[int]:
        return [self._numbers.index(number) for number in self._group.leaving()]

    def say(self, number: int, line: str) -> None:
        self._group.say(self._numbers[number], line)


def _claimed(submission: str, cell: Cell, folder: RunFolder, tell: Tell) -> Member | None:
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


def _begun(member: Member, folder: RunFolder, tell: Tell) -> AttemptPaths:
    """Write the files that a cell needs before its training. Return the paths of its files."""
    job = {"submission": member.submission, "launcher": "local"}
    paths, _ = worker.begin(member.cell, member.cell_dir, member.attempt, job, time.time())
    folder.append(
        "started",
        member.cell.id,
        submission=member.submission,
        attempt=member.attempt.number,
        pid=os.getpid(),
    )
    tell(member.submission, started=member.attempt.number)
    return paths


def _entry(cell: Cell) -> Callable[..., None]:
    """Return the function with which the cell's backend trains many cells."""
    trainer = plugins.load_embedded(cell.settings.backend.name)
    shared = trainer.shared_process if trainer else None
    if shared is None:
        raise TypeError(f"backend {cell.settings.backend.name} trains one cell at a time")
    module, _, function = shared.entry.partition(":")
    sys.stdout.flush()
    entry: Callable[..., None] = getattr(import_module(module), function)
    return entry
