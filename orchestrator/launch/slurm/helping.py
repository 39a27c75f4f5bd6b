"""Jobs of embedded cells help each other: most of so small a job is the start of Python and torch.

A job that has trained its own cell goes on, for a while, with cells of its array that no job has
begun, from the far end: SLURM starts an array's elements in their order. Whoever is the first to
make `<index>.taken` trains that cell. The element's own job waits for it, goes on with what a dead
or interrupted helper left, and ends at once, before it starts a Python, where it finds
`<index>.done`. So each element still ends as its cell did, and what follows it follows that.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from orchestrator.files import read_json
from orchestrator.launch.slurm.lease import SILENT_SECONDS, is_dead
from orchestrator.rundir import AttemptDir


def take(place: Path, index: int, job: str) -> bool:
    """Whether the element of the submission in `place` is this job's now, or was before."""
    marker = _taken(place, index)
    try:
        with marker.open("x") as file:
            file.write(job)
        return True
    except FileExistsError:
        return marker.read_text() == job


def to_help(
    place: Path, index: int, elements: int, job: str, going: Callable[[], bool]
) -> Iterator[int]:
    """Elements behind `index` that no job had begun, each this job's from now on, while `going`."""
    for other in range(elements - 1, index, -1):
        if not going():
            return
        if not _taken(place, other).exists() and take(place, other, job):
            yield other


def done(place: Path, index: int) -> None:
    """Lets the element's own job end at once."""
    (place / f"{index}.done").touch()


def wait_for_helper(
    place: Path, index: int, attempt: AttemptDir, asked: Callable[[], bool]
) -> None:
    """Returns when the attempt has ended, or its helper is dead or silent, or this job is asked
    to stop. Times are the file system's own."""
    mine = place / f"{index}.waits"
    while not (asked() or attempt.exit.exists() or is_dead(attempt)):
        mine.touch()
        sign = attempt.beat if attempt.beat.exists() else _taken(place, index)
        if mine.stat().st_mtime - sign.stat().st_mtime > SILENT_SECONDS:
            return
        time.sleep(0.2)


def is_helped(attempt: AttemptDir, job: str) -> bool:
    """Whether another job than the element's own is at the attempt."""
    if not attempt.job.exists() or (read_json(attempt.job) or {}).get("job") in (None, job):
        return False
    try:
        return time.time() - attempt.beat.stat().st_mtime < SILENT_SECONDS
    except FileNotFoundError:
        return False


def _taken(place: Path, index: int) -> Path:
    return place / f"{index}.taken"
