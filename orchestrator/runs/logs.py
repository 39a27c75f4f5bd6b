"""The output of cells as it comes, and the errors of cells and of evaluation jobs that failed."""

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from orchestrator.launch.logs import Stream, last_lines, output_file, read_on, started_attempt
from orchestrator.library import loggers
from orchestrator.rundir import CellDir, RunFolder
from orchestrator.runs.evaluation_jobs import last_evaluations
from orchestrator.runs.plan import PlanRow
from orchestrator.runs.state import read_state

_POLL_SECONDS = 0.2


class CellError(NamedTuple):
    """The reason why one cell failed."""

    cell: str
    """The name of its directory."""
    failure: str
    message: str
    last_lines: str
    """The end of its stderr."""


def follow(cell_dir: CellDir, stream: Stream = "stdout", *, lines: int = 10) -> Iterator[str]:
    """Yield the last lines, then text as it is written, until the cell has ended.

    Go on into the next attempt when a killed cell is started again.
    """
    attempt = started_attempt(cell_dir, None)
    shown, position = last_lines(output_file(attempt, stream), lines)
    yield shown
    while True:
        running = read_state(cell_dir).state == "running"  # asked first, so that nothing is missed
        text, position = read_on(output_file(attempt, stream), position)
        if text:
            yield text
        newest = started_attempt(cell_dir, None)
        if newest.number != attempt.number:
            attempt, position = newest, 0
        elif not running:
            return
        else:
            time.sleep(_POLL_SECONDS)


def errors(rows: Iterable[PlanRow], *, lines: int = 10) -> list[CellError]:
    """Return each failed cell: class of failure, message, last lines of stderr."""
    errors = []
    for row in rows:
        if row.state != "failed" or row.exit is None:
            continue
        stderr = output_file(started_attempt(row.directory, None), "stderr")
        end = last_lines(stderr, lines)[0]
        name = row.directory.path.name
        errors.append(CellError(name, row.exit.failure, row.exit.message, end))
    return errors


def unsent_runs(rows: Iterable[PlanRow]) -> list[Path]:
    """Return the folders of W&B runs that were kept offline and are not sent yet."""
    return [
        folder
        for row in rows
        for attempt in row.directory.attempts()
        for folder in loggers.offline_runs(attempt.path)
        if not any(folder.glob("*.synced"))
    ]


def evaluation_errors(
    folder: RunFolder, rows: Sequence[PlanRow], *, lines: int = 10
) -> list[CellError]:
    """Return each failed evaluation job of these cells, with the last lines of its log."""
    states = {row.directory.path.name: row.state for row in rows}
    errors = []
    for name, job in last_evaluations(folder, states).items():
        if job.exit is not None:
            end = "\n".join(last_lines(Path(job.log), lines)[0].splitlines())
            failure = f"evaluation: {job.exit.failure}"
            errors.append(CellError(name, failure, job.exit.message, end))
    return errors
