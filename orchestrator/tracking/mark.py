"""mirror.json beside the run directories: what the store held after the last mirror.

With it, mirroring again what is there already does not even import mlflow. It is believed only for
an SQLite file that nobody has written to since, so not for one that was deleted or replaced. While
it is open it is locked: two mirrors of one experiment wait for each other.
"""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from orchestrator.files import telling
from orchestrator.fingerprint import digest
from orchestrator.rundir import RunFolder
from orchestrator.tracking.store import Store


class Note:
    """The open, locked mirror.json."""

    def __init__(self, file: IO[str], store: Store):
        self._file, self._store = file, store

    def says(self, content: str) -> bool:
        """Whether the store still holds exactly this content."""
        self._file.seek(0)
        now = self._state(content)
        return now is not None and self._file.read() == now

    def write(self, content: str) -> None:
        """Notes that the store now holds this content. A note torn by a kill says nothing."""
        self._file.seek(0)
        self._file.truncate()
        self._file.write(self._state(content) or "{}\n")
        self._file.flush()

    def _state(self, content: str) -> str | None:
        database, artifacts = self._store.database, self._store.artifacts
        try:
            if database is None or artifacts is None or not artifacts.is_dir():
                return None
            seen = database.stat()
        except OSError:
            return None
        plain = {
            "content": content,
            "store": digest(self._store.shown),
            "file": [seen.st_ino, seen.st_size, seen.st_mtime_ns],
        }
        return json.dumps(plain) + "\n"


@contextmanager
def noted(folder: RunFolder, store: Store) -> Iterator[Note]:
    """The note of this experiment, locked. Raises RunFolderError if it cannot be written."""
    path: Path = folder.path / "mirror.json"
    with telling(path):
        file = path.open("a+", encoding="utf-8")
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield Note(file, store)
