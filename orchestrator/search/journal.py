"""What a search remembers, on the shared folder: Optuna's journal and what it was declared to be.

runs/<experiment>/tune/
  cells.jsonl                 every cell of a trial, before it is launched
  <name>/journal.log          Optuna's journal: all searches of this name
         <search>.json        what may not change while the journal lasts
         blocks/<search>.json the block it was last driven with, to be read back
         lock                 a lock of the kernel's: it ends with the process that holds it
         alive/<controller>   the same, and touched at each turn, for where locks do not reach
         report/
"""

import fcntl
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from orchestrator.errors import RunFolderError
from orchestrator.files import read_json, telling, write_text
from orchestrator.identity import flatten
from orchestrator.rundir import RunFolder
from orchestrator.runs.plan import note_tuned
from orchestrator.search.design import Search

if TYPE_CHECKING:
    import optuna


_LONGEST_LINE = 1 << 20
BEAT_SECONDS, SILENT_SECONDS = 10.0, 300.0
"""How often a controller says that it lives, and after which silence one of another machine is
given up, where its lock cannot be seen. A controller may be busy submitting for a while."""


class SearchJournal:
    """One journal, opened by one controller or to be looked at."""

    def __init__(self, folder: RunFolder, name: str):
        self.folder, self.path = folder, folder.path / "tune" / name
        self.log = self.path / "journal.log"
        self.me = secrets.token_hex(6)
        self._storage: Any = None
        self._alive: IO[str] | None = None
        self._beaten = -BEAT_SECONDS

    @property
    def storage(self) -> Any:
        """Optuna's storage. Raises RunFolderError for a file that is no journal."""
        if self._storage is None:
            with telling(self.path, passing=()):
                self.path.mkdir(parents=True, exist_ok=True)
            self._storage = _storage(self.log)
        return self._storage

    def study(self, search: Search, **options: Any) -> "optuna.Study":
        """The study of a search, made if it is not there. Raises RunFolderError if the journal
        is of another spec or space."""
        import optuna

        self._declare(search)
        storage = self.storage
        with self.locked():
            return optuna.create_study(
                study_name=search.name,
                storage=storage,
                load_if_exists=True,
                directions=[each.direction for each in search.objectives],
                **options,
            )

    def studies(self) -> dict[str, "optuna.Study"]:
        """What there is, by name; writes nothing."""
        import optuna

        if not self.log.exists():
            return {}
        names = optuna.get_all_study_names(self.storage)
        return {name: optuna.load_study(study_name=name, storage=self.storage) for name in names}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One controller at a time: asking, so that budgets hold, and opening."""
        with telling(self.path), (self.path / "lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextmanager
    def controlling(self) -> Iterator[None]:
        """While this lasts, others leave the trials of `me` alone."""
        place = self.path / "alive" / self.me
        with telling(place, passing=()):
            place.parent.mkdir(parents=True, exist_ok=True)
            self._alive = place.open("a")
            with suppress(OSError):  # no locks here: the beat speaks
                fcntl.flock(self._alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._alive.write(socket.gethostname())
            self._alive.flush()
        try:
            yield
        finally:
            self._alive.close()
            self._alive = None
            place.unlink(missing_ok=True)

    def beat(self) -> None:
        """Says that this controller lives; to be called at each turn."""
        if self._alive is not None and time.monotonic() > self._beaten + BEAT_SECONDS:
            self._beaten = time.monotonic()
            with suppress(OSError):
                os.utime(self._alive.fileno())

    def is_alive(self, controller: str | None) -> bool:
        """Whether the controller of this name is at work."""
        if not controller or not controller.isalnum():
            return False
        if controller == self.me:
            return True
        with suppress(FileNotFoundError), (self.path / "alive" / controller).open() as file:
            host = file.read()
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            except OSError:
                return self._silence(file) < SILENT_SECONDS
            elsewhere = host not in ("", socket.gethostname())
            return elsewhere and self._silence(file) < SILENT_SECONDS
        return False

    def _silence(self, file: IO[str]) -> float:
        """Seconds since a controller's last beat, by the file system's clock."""
        last = os.fstat(file.fileno()).st_mtime
        if self._alive is None:
            return time.time() - last
        os.utime(self._alive.fileno())
        return os.fstat(self._alive.fileno()).st_mtime - last

    def note_cell(self, cell_id: str, search: str, trial: int) -> None:
        """Says, before it is launched, that a cell is a trial's: `prune` keeps it."""
        note_tuned(self.folder, cell_id, f"{self.path.name}/{search}", trial)

    def _declare(self, search: Search) -> None:
        target, wanted = self.path / f"{search.name}.json", search.declared()
        with telling(self.path, passing=()):
            self.path.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{self.me}")
        if not target.exists():
            with telling(target):
                temporary.write_text(json.dumps(wanted, indent=1) + "\n", encoding="utf-8")
                with suppress(FileExistsError):  # whoever comes second compares
                    os.link(temporary, target)
                temporary.unlink()
        found = read_json(target)
        if found != json.loads(json.dumps(wanted)):
            raise RunFolderError(_difference(target, found or {}, wanted))
        with self.locked():
            write_text(self.block_of(search.name), json.dumps(search.plain(), indent=1) + "\n")

    def block_of(self, name: str) -> Path:
        """The file of a search's block."""
        return self.path / "blocks" / f"{name}.json"

    def is_of(self, search: Search) -> bool:
        """Whether the journal holds this very search: its spec may have changed since."""
        found = read_json(self.path / f"{search.name}.json")
        return bool(found == json.loads(json.dumps(search.declared())))


def _difference(path: Path, found: dict[str, Any], wanted: dict[str, Any]) -> str:
    old, new = dict(flatten(found)), dict(flatten(json.loads(json.dumps(wanted))))
    changed = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    listed = "; ".join(
        f"{name}: {_told(old, name)} there, {_told(new, name)} here" for name in changed[:5]
    )
    more = f"; and {len(changed) - 5} more" if len(changed) > 5 else ""
    return (
        f"{path.parent / 'journal.log'} holds another search ({listed}{more}). Nothing was "
        "changed: undo that, or give this search a name of its own (--name, or tune.name)"
    )


def _told(values: dict[str, Any], name: str) -> str:
    return str(values[name]) if name in values else "nothing"


class KernelLock:
    """Optuna's own locks are files that outlive a killed process; the kernel's do not."""

    def __init__(self, log: Path):
        self._log = log
        self._file: IO[str] | None = None

    def acquire(self) -> bool:
        self._file = self._log.with_name("journal.lock").open("a")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        _mend(self._log)
        return True

    def release(self) -> None:
        if self._file is not None:
            self._file.close()


def _storage(log: Path) -> Any:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    lock: Any = KernelLock(log)
    lock.acquire()  # mends what a kill has torn before it is read
    lock.release()
    try:
        if not _is_whole(log):
            raise ValueError("its last line has no end")
        return JournalStorage(JournalFileBackend(str(log), lock_obj=lock))
    except (ValueError, KeyError, TypeError) as error:
        raise RunFolderError(
            f"{log} is no journal of Optuna's ({type(error).__name__}: {error}); restore it, or "
            "move it away and search again: results on disk are told without training"
        ) from error


def _is_whole(log: Path) -> bool:
    """Whether what is appended to a file begins a line."""
    with suppress(FileNotFoundError), log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        return size == 0 or os.pread(file.fileno(), 1, size - 1) == b"\n"
    return True


def _mend(log: Path) -> None:
    """Takes away a last line that a kill has torn: the next one would be appended to it."""
    if _is_whole(log):
        return
    with log.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        start = max(0, size - _LONGEST_LINE)
        file.seek(start)
        whole, _, torn = file.read().rpartition(b"\n")
        if torn.startswith(b"{") and (whole or start == 0):
            file.truncate(size - len(torn))
