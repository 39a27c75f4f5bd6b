"""The files of a search in the shared folder: Optuna's journal, and orch's own.

runs/<experiment>/tune/
  cells.jsonl                 every cell of a trial, before it is launched
  <name>/journal.log          Optuna's journal: all searches of this name
         <search>.json        the parts of the search that must not change any more
         blocks/<search>.json the block with which the search was last driven
         lock                 locked by the controller while it works

Studies, trials and their attributes are Optuna's. Orch adds what Optuna 5.0 does not have for a
journal file: one controller at a time, what a search was declared to be, and repair after a kill.
"""

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from orchestrator.analysis.text import counted
from orchestrator.errors import RunFolderError
from orchestrator.files import read_json, take_lock, telling, write_bytes, write_text
from orchestrator.identity import flatten
from orchestrator.rundir import RunFolder
from orchestrator.runs.plan import note_tuned
from orchestrator.search.design import Search

if TYPE_CHECKING:
    import optuna
    from optuna.storages import JournalStorage

_MAX_LINE_BYTES = 1 << 20


class SearchJournal:
    """One journal, opened by one controller, or opened only to be read."""

    def __init__(self, folder: RunFolder, name: str):
        self.folder, self.path = folder, folder.path / "tune" / name
        self.log = self.path / "journal.log"
        self.damage = ""
        """What could not be read of the journal, after it was opened."""
        self._storage: JournalStorage | None = None
        self._is_controlled = False

    # ------------------------------------------------------------------ studies

    @property
    def storage(self) -> "JournalStorage":
        """Return Optuna's storage. Raise RunFolderError for a file that is no journal."""
        if self._storage is None:
            import optuna
            from optuna.storages import JournalStorage
            from optuna.storages.journal import JournalFileBackend

            optuna.logging.set_verbosity(optuna.logging.ERROR)
            self._make_folder()
            lock: Any = KernelLock(self.log)
            lock.acquire()  # removes a torn last line before the file is read
            try:
                self._set_damage_aside()
            finally:
                lock.release()
            try:
                self._storage = JournalStorage(JournalFileBackend(str(self.log), lock_obj=lock))
            except (ValueError, KeyError, TypeError) as error:
                raise _not_a_journal(self.log, f"{type(error).__name__}: {error}") from error
        return self._storage

    def _set_damage_aside(self) -> None:
        """Remove lines that are no object of JSON, and keep a copy of the file as it was.

        A trial that loses a line is asked anew, or its cells are read again from disk. Raise
        RunFolderError if no line can be read, or while a controller works with the file.
        """
        lines = self.log.read_bytes().splitlines(keepends=True) if self.log.exists() else []
        readable = [line for line in lines if _is_object(line)]
        if len(readable) == len(lines):
            return
        if not readable:
            raise _not_a_journal(self.log, "no line of it can be read")
        damage = f"{self.log} has {counted(len(lines) - len(readable), 'line')} that cannot be read"
        with (self.path / "lock").open("a") as file:
            if not self._is_controlled and not take_lock(file, wait=False):
                raise RunFolderError(
                    f"{damage}, and another orch tune works with it; stop that one first, then the "
                    "other lines are read"
                )
        copy = self.log.with_name(f"journal.damaged-{time.strftime('%Y%m%d-%H%M%S')}.log")
        shutil.copyfile(self.log, copy)
        write_bytes(self.log, b"".join(readable))
        self.damage = f"{damage}; the others were read, and the whole file is kept as {copy}"

    def study(self, search: Search, **options: Any) -> "optuna.Study":
        """Return the study of a search. Make it if it does not exist.

        Raise RunFolderError if the journal is of another spec or range.
        """
        import optuna

        self._declare(search)
        return optuna.create_study(
            study_name=search.name,
            storage=self.storage,
            load_if_exists=True,
            direction=search.block.direction,
            **options,
        )

    def trial(self, study: "optuna.Study", number: int) -> "optuna.Trial":
        """Return the open trial of this number, which takes intermediate values and attributes."""
        import optuna

        study_id = self.storage.get_study_id_from_name(study.study_name)
        return optuna.Trial(
            study, self.storage.get_trial_id_from_study_id_trial_number(study_id, number)
        )

    def studies(self) -> dict[str, "optuna.Study"]:
        """Return the studies by name. Write nothing."""
        import optuna

        if not self.log.exists():
            return {}
        names = optuna.get_all_study_names(self.storage)
        return {name: optuna.load_study(study_name=name, storage=self.storage) for name in names}

    @contextmanager
    def controlling(self) -> Iterator[None]:
        """Be the one controller of this journal inside the context.

        Raise RunFolderError while another process is: two could both create the last trial of a
        budget. The kernel frees the lock with the process that holds it.
        """
        self._make_folder()
        with telling(self.path), (self.path / "lock").open("a") as file:
            if not take_lock(file, wait=False):
                raise RunFolderError(
                    f"another orch tune works with {self.log}: wait until it has ended, or stop it "
                    "first; or begin a search of its own beside it (tune.name=second)"
                )
            self._is_controlled = True
            try:
                yield
            finally:
                self._is_controlled = False

    # ------------------------------------------------------------------ other files of a search

    def note_cell(self, cell_id: str, search: str, trial: int) -> None:
        """Record that a cell belongs to a trial, so that `orch prune` keeps the cell.

        Call it before the cell is launched.
        """
        note_tuned(self.folder, cell_id, f"{self.path.name}/{search}", trial)

    def block(self, search_name: str) -> dict[str, Any] | None:
        """Return the block with which the search was last driven; None if none was written."""
        return read_json(self._block_file(search_name))

    def is_of(self, search: Search) -> bool:
        """Return True if the journal holds exactly this search. The spec may have changed since."""
        declared = read_json(self.path / f"{search.name}.json")
        return bool(declared == _through_json(search.declaration()))

    def _declare(self, search: Search) -> None:
        """Write the declaration of a search, or compare it with the one written before."""
        target, declaration = self.path / f"{search.name}.json", search.declaration()
        self._make_folder()
        declared = read_json(target)
        if declared is None:
            write_text(target, json.dumps(declaration, indent=1) + "\n")
        elif declared != _through_json(declaration):
            raise RunFolderError(_difference(target, declared, declaration))
        block = json.dumps(search.block.model_dump(mode="json"), indent=1) + "\n"
        write_text(self._block_file(search.name), block)

    def _block_file(self, search_name: str) -> Path:
        return self.path / "blocks" / f"{search_name}.json"

    def _make_folder(self) -> None:
        with telling(self.path, passing=()):
            self.path.mkdir(parents=True, exist_ok=True)


def _through_json(plain: Any) -> Any:
    """Return plain data as they are after writing and reading: with lists in place of tuples."""
    return json.loads(json.dumps(plain))


def _difference(path: Path, declared: dict[str, Any], declaration: dict[str, Any]) -> str:
    old, new = dict(flatten(declared)), dict(flatten(_through_json(declaration)))
    changed = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    fields = "; ".join(
        f"{name}: {old.get(name, 'nothing')} there, {new.get(name, 'nothing')} here"
        for name in changed[:5]
    )
    more = f"; and {len(changed) - 5} more" if len(changed) > 5 else ""
    return (
        f"{path.parent / 'journal.log'} holds another search ({fields}{more}). Nothing was "
        "changed: undo that, or give this search a name of its own (tune.name=second)"
    )


# ------------------------------------------------------------------ Optuna's journal file


def _not_a_journal(log: Path, why: str) -> RunFolderError:
    return RunFolderError(
        f"{log} is no journal of Optuna's ({why}); restore it, or move it away and search again: a "
        "trial whose results are on disk does not train again"
    )


def _is_object(line: bytes) -> bool:
    """Return True for a line of Optuna's."""
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


class KernelLock:
    """A lock for Optuna's JournalFileBackend that ends with the process that holds it.

    Optuna's own locks are files. A killed process leaves them behind, and everyone else waits for
    30 s. Optuna appends to a line that a kill has torn, and cannot read the file from then on; so
    every holder of this lock removes such a line first.
    """

    def __init__(self, log: Path):
        self._log = log
        self._file: IO[str] | None = None

    def acquire(self) -> bool:
        """Wait for the lock, then repair the journal."""
        self._file = self._log.with_name("journal.lock").open("a")
        take_lock(self._file)
        _remove_torn_line(self._log)
        return True

    def release(self) -> None:
        """Release the lock."""
        if self._file is not None:
            self._file.close()


def _ends_with_newline(log: Path) -> bool:
    """Return True if appended text would start a new line."""
    with suppress(FileNotFoundError), log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        return size == 0 or os.pread(file.fileno(), 1, size - 1) == b"\n"
    return True


def _remove_torn_line(log: Path) -> None:
    """Truncate a journal to its last complete line; leave a file that is no journal alone."""
    if _ends_with_newline(log):
        return
    with log.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        # Enough for the last line; the file itself may be large.
        start = max(0, size - _MAX_LINE_BYTES)
        file.seek(start)
        complete, _, torn = file.read().rpartition(b"\n")
        # Only a torn object of JSON is cut. The tail of another file may be someone's data.
        if torn.startswith(b"{") and (complete or start == 0):
            file.truncate(size - len(torn))
