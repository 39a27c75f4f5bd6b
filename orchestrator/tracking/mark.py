"""mirror.json: what a store held after the last mirror of an experiment, and the lock on it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from orchestrator.files import take_lock, telling
from orchestrator.identity import digest
from orchestrator.rundir import RunFolder
from orchestrator.tracking.store import Store


class MirrorMark:
    """mirror.json in the folder of run directories: the store's content after the last mirror.

    With it, a second mirror of the same content does not even import mlflow. It is trusted only
    for an SQLite file that was not written to since, so not for one that was deleted or replaced.
    It is locked while it is open: two mirrors of one experiment wait for each other.
    """

    def __init__(self, file: IO[str], store: Store):
        self._file, self._store = file, store

    def matches(self, content: str) -> bool:
        """Return True if the store still holds this content, by this mark."""
        self._file.seek(0)
        now = self._state(content)
        return now is not None and self._file.read() == now

    def write(self, content: str) -> None:
        """Record that the store now has this content. A note torn by a kill matches nothing."""
        self._file.seek(0)
        self._file.truncate()
        self._file.write(self._state(content) or "{}\n")
        self._file.flush()

    def _state(self, content: str) -> str | None:
        database, artifacts = self._store.database, self._store.artifacts
        try:
            if database is None or artifacts is None or not artifacts.is_dir():
                return None
            stat = database.stat()
        except OSError:
            return None
        plain = {
            "content": content,
            "store": digest(self._store.shown),
            "file": [stat.st_ino, stat.st_size, stat.st_mtime_ns],
        }
        return json.dumps(plain) + "\n"


def noted(folder: RunFolder, store: Store, content: str) -> bool:
    """Return True if the mark of the last mirror states that the store has this content."""
    path: Path = folder.path / "mirror.json"
    if not path.is_file():
        return False
    with telling(path), path.open(encoding="utf-8") as file:
        return MirrorMark(file, store).matches(content)


@contextmanager
def locked_mark(folder: RunFolder, store: Store) -> Iterator[MirrorMark]:
    """Open the mark of this experiment and lock it.

    Raise RunFolderError if it cannot be written.
    """
    path: Path = folder.path / "mirror.json"
    with telling(path):
        # a+ makes a missing file, and empties no file before the lock is held.
        file = path.open("a+", encoding="utf-8")
    with file:
        take_lock(file)
        yield MirrorMark(file, store)
