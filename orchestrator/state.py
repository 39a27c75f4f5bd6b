"""What state a cell is in, read from its run directory. Reading never changes it."""

from orchestrator.rundir import CellDir
from orchestrator.types import ENDED, ExitRecord, State

RESUMABLE: frozenset[str] = frozenset({"planned", "preempted", "timed_out"})
"""States from which `orch run` goes on by itself. `failed` and `cancelled` wait for `retry`."""


def state_of(cell_dir: CellDir) -> tuple[State, ExitRecord | None]:
    """The state of a cell trained on this machine, and how its last attempt ended.

    An attempt with no exit record whose claim nobody holds was killed: `preempted`, since running
    again resumes it from its last checkpoint.
    """
    attempts = cell_dir.attempts()
    if not attempts:
        return "planned", None
    ended = attempts[-1].read_exit()
    if ended is not None:
        return ended.state, ended
    if cell_dir.is_claimed():
        return "running", None
    ended = attempts[-1].read_exit()  # it may have ended between the two looks
    return (ended.state, ended) if ended is not None else ("preempted", None)


def is_ended(state: State) -> bool:
    return state in ENDED
