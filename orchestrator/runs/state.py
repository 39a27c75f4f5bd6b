"""The state of a cell, from its run directory and the scheduler; and which failures are retried.

Reading never changes a state.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from orchestrator.launch.progress import is_stuck
from orchestrator.launch.slurm import poll
from orchestrator.records import ENDED, ExitRecord, State
from orchestrator.rundir import RESUMABLE, CellDir, CellState, RunFolder
from orchestrator.runs.ended import EndedIndex, index_of
from orchestrator.spec.site_options import RETRIES, SlurmOptions


class CellLook(NamedTuple):
    """The data that are read once to derive the states of a folder's cells."""

    ended: EndedIndex
    answer: poll.SchedulerSnapshot

    def state_of(self, cell_dir: CellDir, *, claimed: bool = False) -> CellState:
        """Return the state of a cell; see CellDir.state. claimed: the caller holds its claim."""
        if (known := self.ended.state_of(cell_dir)) is not None:
            return known
        state = self.answer.state_of(cell_dir, claimed=claimed)
        self.ended.note(cell_dir, state)
        return state


@contextmanager
def one_look(folder: RunFolder) -> Iterator[CellLook]:
    """Look at many cells of a folder at one moment.

    The scheduler is asked at most once, and only about attempts that were submitted and have no
    final exit record. A cell that has ended is opened once: see runs/ended.
    """
    with poll.one_look(folder) as answer:
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


def elsewhere(exits: Iterable[ExitRecord | None]) -> list[str]:
    """Return a sentence for each store that cells were pulled from."""
    stores = Counter(ended.origin for ended in exits if ended is not None and ended.origin)
    return [
        f"{count} trained elsewhere, and pulled from {store}" for store, count in stores.items()
    ]


_SILENT = frozenset({"lost", "node", "out_of_memory", "disk"})
"""Failures that may kill a job before it can write its exit record."""


def may_retry(cell_dir: CellDir, state: CellState, options: SlurmOptions) -> bool:
    """Return True if a cell that stopped is submitted again automatically.

    A configuration error is never tried again, because it would fail again. A collapse is a result
    and not a failure, so it never gets here.
    """
    if state.state == "planned":
        return True
    ended = state.exit
    failure = ended.failure if ended is not None else ""
    if state.state in RESUMABLE and failure != "node":
        if state.attempts > 2 and is_stuck(cell_dir.read_cell(), cell_dir, ended):
            return False
        return _count(cell_dir, "") <= options.max_requeues
    if state.state == "failed" or failure == "node":
        return _count(cell_dir, failure) <= retry_limit(failure, options)
    return False


def retry_limit(failure: str, options: SlurmOptions) -> int:
    """Return the number of retries for a failure of this class."""
    limits: Mapping[str, int] = {str(k): v for k, v in options.retries.items()}
    return limits.get(failure, RETRIES.get(failure, 0))


def _count(cell_dir: CellDir, failure: str) -> int:
    """Return the number of attempts that ended in this class.

    An attempt without an exit record counts in each class of `_SILENT`.
    """
    count = 0
    for attempt in cell_dir.attempts():
        ended = attempt.read_exit()
        if ended is None:
            count += failure in _SILENT and attempt.job.exists()
        else:
            count += ended.failure == failure
    return count
