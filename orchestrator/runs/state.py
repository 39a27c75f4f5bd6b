"""The state of a cell, from its run directory and the scheduler; and which failures are retried.

Reading never changes a state. A cell that has ended is not opened again: its state is in an index.
runs/<experiment>/index/<host>-<pid>.tsv has one line for each ended cell that this process of orch
has read: its directory, the times of change of attempts/ and of its last attempt, the number of
attempts, and the exit record. Each process appends to its own file, so machines never append to the
same file.

The index is a cache. A line is valid only while both times are those of the folders, because a new
attempt or a new exit record changes them. If the index is missing or has cut lines, the cells are
read from their folders and the index is written again.
"""

import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from orchestrator.errors import RunFolderError
from orchestrator.files import write_text
from orchestrator.launch.progress import is_stuck
from orchestrator.launch.ray import look as ray_look
from orchestrator.launch.slurm import poll
from orchestrator.records import ENDED, ExitRecord, State
from orchestrator.rundir import (
    RESUMABLE,
    AttemptDir,
    CellDir,
    CellState,
    RunFolder,
    SchedulerReport,
)
from orchestrator.spec.site_options import RETRIES, ClusterOptions

MAX_FILES = 16
"""With more files than this they are merged into one."""
_SETTLED_NS = 5_000_000_000
"""Nanoseconds after a change in which a second one may have the same time."""


class _Line(NamedTuple):
    times: tuple[int, int]
    number: int
    """Number of the last attempt."""
    attempts: int
    exit: str


class EndedIndex:
    """The ended cells of one folder, as this process knows them."""

    def __init__(self, folder: RunFolder):
        self._path = folder.path / "index"
        self._own = self._path / f"{socket.gethostname()}-{os.getpid()}.tsv"
        self._lines: dict[str, _Line] = {}
        self._new: list[str] = []
        self._read()

    def state_of(self, cell_dir: CellDir) -> CellState | None:
        """Return the state of a cell that has ended, or None if its folder must be read."""
        line = self._lines.get(cell_dir.path.name)
        if line is None or _times(cell_dir, line.number) != line.times:
            return None
        try:
            ended = ExitRecord.model_validate_json(line.exit)
        # The line was cut by a kill: the folder is read.
        except ValidationError:
            return None
        return CellState(ended.state, ended, line.attempts)

    def note(self, cell_dir: CellDir, state: CellState) -> None:
        """Keep the state of a cell that was read from its folder, if it has ended for good."""
        if state.exit is None or state.state in RESUMABLE or state.state != state.exit.state:
            return
        attempts = cell_dir.attempts()
        if not attempts or len(attempts) != state.attempts:
            return
        # times first: what changes the folder after this look changes them too
        times, last = _times(cell_dir, attempts[-1].number), attempts[-1]
        if times is None or time.time_ns() - max(times) < _SETTLED_NS:
            return
        if len(cell_dir.attempts()) != state.attempts or not last.exit.exists():
            return  # only the scheduler knows how it ended, or it was just begun again
        line = _Line(times, last.number, state.attempts, state.exit.model_dump_json())
        self._lines[cell_dir.path.name] = line
        self._new.append(_written(cell_dir.path.name, line))

    def flush(self) -> None:
        """Append the new lines. If the folder is not writable, the cells are read again the next
        time."""
        if not self._new:
            return
        new, self._new = self._new, []
        with suppress(OSError, RunFolderError):
            self._path.mkdir(exist_ok=True)
            with self._own.open("a", encoding="utf-8") as file:
                file.write("".join(new))
            self._merge()

    def _read(self) -> None:
        for path in self._files():
            with suppress(OSError, UnicodeDecodeError):
                for text in path.read_text(encoding="utf-8").split("\n"):
                    fields = text.split("\t", 5)
                    with suppress(ValueError, IndexError):
                        name, number, attempts, exit_ = fields[0], fields[3], fields[4], fields[5]
                        times = int(fields[1]), int(fields[2])
                        self._lines[name] = _Line(times, int(number), int(attempts), exit_)

    def _merge(self) -> None:
        """Write one file in place of many. A file that another process has since removed, or is
        appending to, costs no more than reading some cells again."""
        files = list(self._files())
        if len(files) <= MAX_FILES:
            return
        # Again, because other processes may have appended since this one read.
        self._read()
        text = "".join(_written(name, line) for name, line in sorted(self._lines.items()))
        write_text(self._own, text)
        # Only after the merged file is complete: a kill in between leaves lines twice, which does
        # no harm.
        for path in files:
            if path != self._own:
                path.unlink(missing_ok=True)

    def _files(self) -> Iterator[Path]:
        with suppress(OSError):
            # Oldest first: the line of a newer file replaces that of an older one.
            yield from sorted(self._path.glob("*.tsv"), key=lambda path: path.stat().st_mtime_ns)


def _written(name: str, line: _Line) -> str:
    return "\t".join((name, *map(str, line.times), *map(str, line[1:3]), line.exit)) + "\n"


def _times(cell_dir: CellDir, number: int) -> tuple[int, int] | None:
    """Return when attempts/ and its attempt of this number changed; None if one is missing."""
    attempts = f"{cell_dir.path}/attempts"
    try:
        return os.stat(attempts).st_mtime_ns, os.stat(f"{attempts}/{number}").st_mtime_ns  # noqa: PTH116  (10,000 times)
    except OSError:
        return None


@lru_cache(maxsize=8)
def index_of(folder: Path) -> EndedIndex:
    """Return the index of a folder, read once by this process."""
    return EndedIndex(RunFolder(folder))


class CellLook(NamedTuple):
    """The data that are read once to derive the states of a folder's cells."""

    ended: EndedIndex
    answer: poll.SchedulerSnapshot

    def state_of(self, cell_dir: CellDir, *, claimed: bool = False) -> CellState:
        """Return the state of a cell; see CellDir.state. claimed: the caller holds its claim."""
        if (known := self.ended.state_of(cell_dir)) is not None:
            return known
        state = self.answer.state_of(cell_dir, claimed=claimed, poll=polled_state)
        self.ended.note(cell_dir, state)
        return state


def polled_state(
    cell_dir: CellDir, attempt: AttemptDir, ended: ExitRecord | None
) -> SchedulerReport | None:
    """Return the report on an attempt by the scheduler, or the job server, that has its order."""
    ask = ray_look.polled_state if ray_look.is_ray(attempt) else poll.polled_state
    return ask(cell_dir, attempt, ended)


@contextmanager
def one_look(folder: RunFolder) -> Iterator[CellLook]:
    """Look at many cells of a folder at one moment.

    The scheduler is asked at most once, and only about attempts that were submitted and have no
    final exit record. A cell that has ended is opened once: see EndedIndex.
    """
    with poll.one_look(folder) as answer, ray_look.one_look():
        index = index_of(folder.path)
        yield CellLook(index, answer)
        index.flush()


def read_state(cell_dir: CellDir, *, claimed: bool = False) -> CellState:
    """Return the state of one cell; see CellDir.state. claimed: the caller holds its claim."""
    folder = RunFolder(cell_dir.path.parents[1])
    look = CellLook(index_of(folder.path), poll.snapshot(folder))
    return look.state_of(cell_dir, claimed=claimed)


def state_of(cell_dir: CellDir) -> tuple[State, ExitRecord | None]:
    """Return the state alone, and how the last attempt ended."""
    current = read_state(cell_dir)
    return current.state, current.exit


def survey(folder: RunFolder) -> list[tuple[CellDir, CellState]]:
    """Return every cell on disk with its state, by name.

    No cell.json is read: 10,000 cells take half a second.
    """
    folder.check()
    with one_look(folder) as look:
        return [(cell_dir, look.state_of(cell_dir)) for cell_dir in folder.cells()]


def is_ended(state: State) -> bool:
    """Return True if a cell in this state has ended for good."""
    return state in ENDED


_SILENT = frozenset({"lost", "node", "out_of_memory", "disk"})
"""Failures that may kill a job before it can write its exit record."""


def may_retry(cell_dir: CellDir, state: CellState, options: ClusterOptions) -> bool:
    """Return True if a cell that stopped is submitted again automatically.

    A configuration error is never tried again, because it would fail again. A collapse is a result
    and not a failure, so it never gets here.
    """
    if state.state == "planned":
        return True
    ended = state.exit
    failure = ended.failure if ended is not None else ""
    if state.state in RESUMABLE and failure != "node":
        # A cell is stuck after three attempts at the earliest: for fewer no file is read.
        if state.attempts > 2 and is_stuck(cell_dir.read_cell(), cell_dir, ended):
            return False
        # An attempt that was stopped has no class of failure.
        return _count(cell_dir, "") <= options.max_requeues
    if state.state == "failed" or failure == "node":
        return _count(cell_dir, failure) <= retry_limit(failure, options)
    return False


def retry_limit(failure: str, options: ClusterOptions) -> int:
    """Return the number of retries for a failure of this class."""
    limits: Mapping[str, int] = {str(k): v for k, v in options.retries.items()}
    return limits.get(failure, RETRIES.get(failure, 0))


def _count(cell_dir: CellDir, failure: str) -> int:
    """Return the number of attempts that ended in this class.

    An attempt without an exit record counts in each class of `_SILENT`.
    """
    count = 0
    for attempt in cell_dir.attempts():
        ended = attempt.known_exit()
        if ended is None:
            count += failure in _SILENT and attempt.job.exists()
        else:
            count += ended.failure == failure
    return count
