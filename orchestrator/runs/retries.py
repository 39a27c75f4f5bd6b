"""What is tried again by itself, by class of failure and how often it happened. Pure but for
reading the attempts.

A configuration error is never tried again: it would fail again. A collapse is a result, not a
failure, and never comes here.
"""

from collections.abc import Mapping

from orchestrator.rundir import RESUMABLE, CellDir, CellState
from orchestrator.spec.site_options import RETRIES, SlurmOptions

_WORDLESS = frozenset({"lost", "node", "out_of_memory", "disk"})
"""Of these a job may die before it can write down how."""


def may_retry(cell_dir: CellDir, seen: CellState, options: SlurmOptions) -> bool:
    """Whether a cell that stopped is to be submitted again without a person's word."""
    if seen.state == "planned":
        return True
    ended = seen.exit
    failure = ended.failure if ended is not None else ""
    if seen.state in RESUMABLE and failure != "node":
        return _count(cell_dir, "") <= options.max_requeues
    if seen.state == "failed" or failure == "node":
        return _count(cell_dir, failure) <= retry_limit(failure, options)
    return False


def retry_limit(failure: str, options: SlurmOptions) -> int:
    """How often a failure of this class is tried again."""
    given: Mapping[str, int] = {str(k): v for k, v in options.retries.items()}
    return given.get(failure, RETRIES.get(failure, 0))


def _count(cell_dir: CellDir, failure: str) -> int:
    """Attempts that ended in this way; those that left no word count in each class that may."""
    count = 0
    for attempt in cell_dir.attempts():
        ended = attempt.read_exit()
        if ended is None:
            count += failure in _WORDLESS and attempt.job.exists()
        else:
            count += ended.failure == failure
    return count
