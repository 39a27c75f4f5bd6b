"""The progress of attempts that were stopped and started again.

An attempt has made progress if a checkpoint is newer than before it, or if it began at a later
train step than the one before: the embedded trainer keeps a state that is no checkpoint yet.
"""

from collections.abc import Sequence

from orchestrator import plugins
from orchestrator.files import read_json
from orchestrator.records import Cell, ExitRecord
from orchestrator.rundir import RESUMABLE, AttemptDir, CellDir

MAX_IDLE_REQUEUES = 2
"""Times that a cell is started again without a newer checkpoint."""


def checkpoint_step(cell: Cell, cell_dir: CellDir) -> int:
    """Return the train step of the newest whole checkpoint; 0 without one."""
    backend = plugins.load(cell.settings.backend.name)
    return max((each.step for each in backend.find_checkpoints(cell_dir.checkpoints)), default=0)


def is_stuck(cell: Cell, cell_dir: CellDir, last: ExitRecord | None = None) -> bool:
    """Return True if the cell was started again MAX_IDLE_REQUEUES times and made no progress.

    last: the ending of the last attempt, if it is not written yet. Return False if unknown.
    """
    attempts = _stopped(cell_dir.attempts(), last)[-MAX_IDLE_REQUEUES - 1 :]
    if len(attempts) <= MAX_IDLE_REQUEUES:
        return False
    try:
        before = (read_json(attempts[0].job) or {}).get("checkpoint_step")
        if before is None or checkpoint_step(cell, cell_dir) > before:
            return False
        first, *later = (_first_step(cell, attempt) for attempt in attempts)
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return max(later) <= first


def _stopped(attempts: Sequence[AttemptDir], last: ExitRecord | None) -> list[AttemptDir]:
    """Return the attempts at the end of the list that began and were stopped before their end."""
    stopped: list[AttemptDir] = []
    for attempt in reversed(attempts):
        ended = attempt.read_exit() or (None if stopped else last)
        if not attempt.job.exists() or (ended is not None and ended.state not in RESUMABLE):
            break
        stopped.insert(0, attempt)
    return stopped


def _first_step(cell: Cell, attempt: AttemptDir) -> int:
    """Return the first train step that an attempt reports; 0 if it reports none."""
    backend = plugins.load(cell.settings.backend.name)
    try:
        return min((point.step for point in backend.read_metrics(attempt.path)), default=0)
    except FileNotFoundError:
        return 0
