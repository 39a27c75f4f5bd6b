"""What state a cell is in, read from its run directory. Reading never changes it.

The last attempt says it: its exit.json where it has ended; else `running` while somebody holds the
cell's claim; else `preempted`, for it was killed and running again resumes it. An attempt that was
made and never started (no job.json) is a cell waiting to run: `retry` makes one. Of an attempt that
was submitted to a cluster and has no last word, the scheduler is asked, once for all.
"""

from typing import NamedTuple

from orchestrator.errors import RunFolderError
from orchestrator.records import ENDED, ExitRecord, State
from orchestrator.rundir import CellDir, RunFolder

RESUMABLE: frozenset[str] = frozenset({"planned", "preempted", "timed_out"})
"""States from which `orch run` goes on by itself. `failed` and `cancelled` wait for `retry`."""


class CellState(NamedTuple):
    """What one look at a run directory saw."""

    state: State
    exit: ExitRecord | None = None
    """How the last attempt ended."""
    attempts: int = 0
    fault: str = ""
    """Why the state is unknown: what cannot be read, in a sentence."""


def look(cell_dir: CellDir, *, mine: bool = False) -> CellState:
    """The state of a cell. `mine`: the caller holds its claim."""
    try:
        return _look(cell_dir, mine)
    except RunFolderError as error:
        return CellState("unknown", fault=str(error))


def state_of(cell_dir: CellDir) -> tuple[State, ExitRecord | None]:
    """The state alone, and how the last attempt ended."""
    seen = look(cell_dir)
    return seen.state, seen.exit


def survey(folder: RunFolder) -> list[tuple[CellDir, CellState]]:
    """Every cell on disk with its state, by name. Reads no cell.json: 10,000 take half a second."""
    folder.check()
    return [(cell_dir, look(cell_dir)) for cell_dir in folder.cells()]


def is_ended(state: State) -> bool:
    return state in ENDED


def _look(cell_dir: CellDir, mine: bool) -> CellState:
    attempts = cell_dir.attempts()
    if not attempts:
        return CellState("planned")
    last, count = attempts[-1], len(attempts)
    ended = last.read_exit()
    if ended is not None and ended.state not in RESUMABLE:
        return CellState(ended.state, ended, count)
    if last.order.exists():
        from orchestrator.launch.slurm.poll import seen

        told = seen(cell_dir, last, ended)
        if told is not None and told[0] in ("submitted", "pending", "running"):
            return CellState(told[0], told[1], count, told[2])
        late = last.read_exit()  # it may have ended between the two looks
        if late is not None and late.state not in RESUMABLE:
            return CellState(late.state, late, count)
        if told is not None:
            return CellState(told[0], told[1], count, told[2])
    if ended is not None:
        return CellState(ended.state, ended, count)
    if not mine and cell_dir.is_claimed():
        return CellState("running", None, count)
    ended = last.read_exit()  # it may have ended between the two looks
    if ended is not None:
        return CellState(ended.state, ended, count)
    return CellState("preempted" if last.job.exists() else "planned", None, count)
