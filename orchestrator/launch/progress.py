"""The progress of attempts that were stopped and started again.

An attempt has made progress if training can go on from a later train step than before it.
"""

from collections.abc import Sequence

from orchestrator import plugins
from orchestrator.files import read_json
from orchestrator.records import Cell, ExitRecord
from orchestrator.rundir import RESUMABLE, AttemptDir, CellDir

MAX_IDLE_REQUEUES = 2
"""Times that a cell is started again without progress."""


def resumable_step(cell: Cell, cell_dir: CellDir) -> int:
    """Return the train step from which training can go on; 0 if it begins anew."""
    return plugins.load(cell.settings.backend.name).resumable_step(cell_dir.checkpoints)


def is_stuck(cell: Cell, cell_dir: CellDir, last: ExitRecord | None) -> bool:
    """Return True if the cell was started again MAX_IDLE_REQUEUES times and made no progress.

    last: the ending of the last attempt, if it is not written yet. Return False if unknown.
    """
    attempts = _stopped(cell_dir.attempts(), last)[-MAX_IDLE_REQUEUES - 1 :]
    if len(attempts) <= MAX_IDLE_REQUEUES:
        return False
    try:
        before = (read_json(attempts[0].job) or {}).get("checkpoint_step")
        return before is not None and resumable_step(cell, cell_dir) <= before
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _stopped(attempts: Sequence[AttemptDir], last: ExitRecord | None) -> list[AttemptDir]:
    """Return the attempts at the end of the list that began and were stopped before their end."""
    stopped: list[AttemptDir] = []
    for attempt in reversed(attempts):
        ended = attempt.read_exit() or (None if stopped else last)
        if not attempt.job.exists() or (ended is not None and ended.state not in RESUMABLE):
            break
        stopped.insert(0, attempt)
    return stopped
