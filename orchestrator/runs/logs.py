"""The output of cells: last lines, lines as they come, and the errors of all that failed."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from orchestrator.errors import SelectionError
from orchestrator.files import telling
from orchestrator.rundir import AttemptDir, CellDir
from orchestrator.runs.plan import PlanRow
from orchestrator.runs.state import read_state

Stream = Literal["stdout", "stderr"]
_LINE_BYTES = 400
_POLL_SECONDS = 0.2


class CellError(NamedTuple):
    """Why one cell failed."""

    directory: CellDir
    failure: str
    message: str
    last_lines: str
    """The end of its stderr."""


def logs(
    cell_dir: CellDir, stream: Stream = "stdout", *, lines: int = 50, attempt: int | None = None
) -> str:
    """Return the last lines of an attempt; of the last one that started, if none is named.

    Raise SelectionError where there is no such attempt.
    """
    return _tail(_file(_attempt(cell_dir, attempt), stream), lines)[0]


def follow(cell_dir: CellDir, stream: Stream = "stdout", *, lines: int = 10) -> Iterator[str]:
    """Yield the last lines, then text as it is written, until the cell has ended.

    Go on into the next attempt when a killed cell is started again.
    """
    attempt = _attempt(cell_dir, None)
    shown, position = _tail(_file(attempt, stream), lines)
    yield shown
    while True:
        running = read_state(cell_dir).state == "running"  # asked first, so that nothing is missed
        text, position = _read_on(_file(attempt, stream), position)
        if text:
            yield text
        newest = _attempt(cell_dir, None)
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
        last_lines = _tail(_file(_attempt(row.directory, None), "stderr"), lines)[0]
        errors.append(CellError(row.directory, row.exit.failure, row.exit.message, last_lines))
    return errors


def _attempt(cell_dir: CellDir, number: int | None) -> AttemptDir:
    attempts = cell_dir.attempts()
    started = [a for a in attempts if a.job.exists() or a.stdout.exists()]
    if number is not None:
        started = [a for a in attempts if a.number == number]
    if not started:
        which = "was never started" if number is None else f"has no attempt {number}"
        raise SelectionError(
            f"{cell_dir.path.name} {which}; `orch status` shows what each cell has done"
        )
    return started[-1]


def _file(attempt: AttemptDir, stream: Stream) -> Path:
    return attempt.stdout if stream == "stdout" else attempt.stderr


def _tail(path: Path, lines: int) -> tuple[str, int]:
    """Return the last lines of a file, and where it ended."""
    with telling(path):
        try:
            end = path.stat().st_size
        except FileNotFoundError:
            return "", 0
    text, _ = _read_on(path, max(0, end - lines * _LINE_BYTES), end)
    return "".join(text.splitlines(keepends=True)[-lines:]), end


def _read_on(path: Path, position: int, end: int | None = None) -> tuple[str, int]:
    """Return the text of a file from a position on, and where it ends."""
    with telling(path):
        try:
            with path.open("rb") as file:
                file.seek(position)
                raw = file.read() if end is None else file.read(end - position)
        except FileNotFoundError:
            return "", position
    return raw.decode(errors="replace"), position + len(raw)
