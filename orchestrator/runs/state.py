"""The state of a cell: what its run directory says and, for a submitted cell, the scheduler.

Reading never changes a state.
"""

from orchestrator.launch.slurm.poll import polled_state
from orchestrator.records import ENDED, ExitRecord, State
from orchestrator.rundir import CellDir, CellState, RunFolder


def read_state(cell_dir: CellDir, *, claimed: bool = False) -> CellState:
    """Return the state of a cell; see CellDir.state. claimed: the caller holds its claim.

    The scheduler is asked at most once for all cells of a folder, and only about attempts that were
    submitted and have no final exit record.
    """
    return cell_dir.state(claimed=claimed, poll=polled_state)


def state_of(cell_dir: CellDir) -> tuple[State, ExitRecord | None]:
    """Return the state alone, and how the last attempt ended."""
    current = read_state(cell_dir)
    return current.state, current.exit


def survey(folder: RunFolder) -> list[tuple[CellDir, CellState]]:
    """Return every cell on disk with its state, by name.

    No cell.json is read: 10,000 cells take half a second.
    """
    folder.check()
    return [(cell_dir, read_state(cell_dir)) for cell_dir in folder.cells()]


def is_ended(state: State) -> bool:
    """Return whether a cell in this state has ended for good."""
    return state in ENDED
