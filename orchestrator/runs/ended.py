"""The index of ended cells. A cell that has ended is not opened again.

runs/<experiment>/index/<host>-<pid>.tsv has one line for each ended cell that this process of orch
has read: its directory, the times of change of attempts/ and of its last attempt, the number of
attempts, and the exit record. Each process appends to its own file, so machines never append to the
same file.

The index is a cache. A line is valid only while both times are those of the folders, because a new
attempt or a new exit record changes them. If the index is missing or has cut lines, the cells are
read from their folders and the index is written again.
"""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from orchestrator.errors import RunFolderError
from orchestrator.files import write_text
from orchestrator.records import ExitRecord
from orchestrator.rundir import RESUMABLE, CellDir, CellState, RunFolder

MAX_FILES = 16
"""With more files than this they are merged into one."""
_SETTLED_NS = 5_000_000_000
"""Nanoseconds after a change in which a second one may have the same time."""


class _Line(NamedTuple):
    times: tuple[int, int]
    number: int
    """Of the last attempt."""
    attempts: int
    exit: str


class EndedIndex:
    """The ended cells of one folder, as this process knows them."""

    def __init__(self, folder: RunFolder):
        self._path = folder.path / "index"
        self._own = self._path / f"{socket.gethostname()}-{os.getpid()}.tsv"
        self._lines: dict[str, _Line] = {}
        self._new: list[str] = []
        self._read()

    def state_of(self, cell_dir: CellDir) -> CellState | None:
        """Return the state of a cell that has ended, or None if its folder must be read."""
        line = self._lines.get(cell_dir.path.name)
        if line is None or _times(cell_dir, line.number) != line.times:
            return None
        try:
            ended = ExitRecord.model_validate_json(line.exit)
        except ValidationError:
            return None
        return CellState(ended.state, ended, line.attempts)

    def note(self, cell_dir: CellDir, state: CellState) -> None:
        """Keep the state of a cell that was read from its folder, if it has ended for good."""
        if state.exit is None or state.state in RESUMABLE or state.state != state.exit.state:
            return
        attempts = cell_dir.attempts()
        if not attempts or len(attempts) != state.attempts:
            return
        # times first: what changes the folder after this look changes them too
        times, last = _times(cell_dir, attempts[-1].number), attempts[-1]
        if times is None or time.time_ns() - max(times) < _SETTLED_NS:
            return
        if len(cell_dir.attempts()) != state.attempts or not last.exit.exists():
            return  # only the scheduler knows how it ended, or it was just begun again
        line = _Line(times, last.number, state.attempts, state.exit.model_dump_json())
        self._lines[cell_dir.path.name] = line
        self._new.append(_written(cell_dir.path.name, line))

    def flush(self) -> None:
        """Append the new lines. If the folder is not writable, the cells are read again the next
        time."""
        if not self._new:
            return
        new, self._new = self._new, []
        with suppress(OSError, RunFolderError):
            self._path.mkdir(exist_ok=True)
            with self._own.open("a", encoding="utf-8") as file:
                file.write("".join(new))
            self._merge()

    def _read(self) -> None:
        for path in self._files():
            with suppress(OSError, UnicodeDecodeError):
                for text in path.read_text(encoding="utf-8").split("\n"):
                    fields = text.split("\t", 5)
                    with suppress(ValueError, IndexError):
                        name, number, attempts, exit_ = fields[0], fields[3], fields[4], fields[5]
                        times = int(fields[1]), int(fields[2])
                        self._lines[name] = _Line(times, int(number), int(attempts), exit_)

    def _merge(self) -> None:
        """Write one file in place of many. A file that another process has since removed, or is
        appending to, costs no more than reading some cells again."""
        files = list(self._files())
        if len(files) <= MAX_FILES:
            return
        self._read()
        text = "".join(_written(name, line) for name, line in sorted(self._lines.items()))
        write_text(self._own, text)
        for path in files:
            if path != self._own:
                path.unlink(missing_ok=True)

    def _files(self) -> Iterator[Path]:
        with suppress(OSError):
            yield from sorted(self._path.glob("*.tsv"), key=lambda path: path.stat().st_mtime_ns)


def _written(name: str, line: _Line) -> str:
    return "\t".join((name, *map(str, line.times), *map(str, line[1:3]), line.exit)) + "\n"


def _times(cell_dir: CellDir, number: int) -> tuple[int, int] | None:
    """Return when attempts/ and its attempt of this number changed; None if one is missing."""
    attempts = f"{cell_dir.path}/attempts"
    try:
        return os.stat(attempts).st_mtime_ns, os.stat(f"{attempts}/{number}").st_mtime_ns  # noqa: PTH116  (10,000 times)
    except OSError:
        return None


@lru_cache(maxsize=8)
def index_of(folder: Path) -> EndedIndex:
    """Return the index of a folder, read once by this process."""
    return EndedIndex(RunFolder(folder))
