"""The state of a cell, from its run directory and the scheduler; and which failures are retried.

Reading never changes a state.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from orchestrator.launch.cluster_launcher import polled_state
from orchestrator.launch.progress import is_stuck
from orchestrator.launch.ray import look as ray_look
from orchestrator.launch.slurm import poll
from orchestrator.records import Cell
from orchestrator.rundir import (
    RESUMABLE,
    CellDir,
    CellState,
    RunFolder,
)
from orchestrator.spec.site_options import RETRIES, ClusterOptions


def read_state(cell_dir: CellDir, *, claimed: bool = False) -> CellState:
    """Return the state of one cell; see CellDir.state. claimed: the caller holds its claim."""
    return cell_dir.state(claimed=claimed, poll=polled_state)


@contextmanager
def one_look(folder: RunFolder) -> Iterator[None]:
    """Look at many cells of a folder at one moment.

    The scheduler is asked at most once, and only about attempts that were submitted and have no
    final exit record.
    """
    with poll.one_look(folder), ray_look.LOOKS.one():
        yield


def read_states(cells: Iterable[Cell], folder: RunFolder) -> list[tuple[Cell, CellState]]:
    """Return the states of cells at one moment."""
    with one_look(folder):
        return [(cell, read_state(folder.cell(cell))) for cell in cells]


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
