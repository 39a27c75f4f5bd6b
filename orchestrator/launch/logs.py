"""The output of attempts: the attempt of a cell that is meant, and the ends of its files."""

from pathlib import Path
from typing import Literal

from orchestrator.errors import SelectionError
from orchestrator.files import telling
from orchestrator.rundir import AttemptDir, CellDir

Stream = Literal["stdout", "stderr"]
_LINE_BYTES = 400


def logs(
    cell_dir: CellDir, stream: Stream = "stdout", *, lines: int = 50, attempt: int | None = None
) -> str:
    """Return the last lines of an attempt; of the last one that started, if none is named.

    Raise SelectionError where there is no such attempt.
    """
    return last_lines(output_file(started_attempt(cell_dir, attempt), stream), lines)[0]


def started_attempt(cell_dir: CellDir, number: int | None) -> AttemptDir:
    """Return an attempt by number; None: the last that started. Raise SelectionError if none is."""
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


def output_file(attempt: AttemptDir, stream: Stream) -> Path:
    """Return the file of a stream."""
    return attempt.stdout if stream == "stdout" else attempt.stderr


def last_lines(path: Path, lines: int) -> tuple[str, int]:
    """Return the last lines of a file, and where it ended."""
    with telling(path):
        try:
            end = path.stat().st_size
        except FileNotFoundError:
            return "", 0
    text, _ = read_on(path, max(0, end - lines * _LINE_BYTES), end)
    return "".join(text.splitlines(keepends=True)[-lines:]), end


def read_on(path: Path, position: int, end: int | None = None) -> tuple[str, int]:
    """Return the text of a file from a position on, and where it ends."""
    with telling(path):
        try:
            with path.open("rb") as file:
                file.seek(position)
                raw = file.read() if end is None else file.read(end - position)
        except FileNotFoundError:
            return "", position
    return raw.decode(errors="replace"), position + len(raw)
