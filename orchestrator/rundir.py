"""The run directory is the protocol. This module owns every path and every write in it.

    runs/mlflow.db, runs/mlartifacts/             the mirror
    runs/<experiment>/                            `<name>`, or `<name>.micro` at micro scale
      format.json  spec.json  ledger.jsonl  report/
      cells/<slug>-<id>/
        cell.json  claim  plan/  checkpoints/  eval/
        attempts/<n>/{job.json, stdout, stderr, metrics.jsonl, exit.json}

Writes are atomic (a new file renamed over the old one) or single appends of whole lines. A cell is
worked on only by the process that holds the lock on its `claim`, so the kernel ends a claim with
its process and no cell is ever trained twice at once.
"""

import contextlib
import errno
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, TypeVar

from pydantic import BaseModel, ValidationError

from orchestrator import __version__
from orchestrator.errors import RunFolderError
from orchestrator.types import Cell, ExitRecord, LaunchPlan, Place

FORMAT = 1
"""Raised when an older orch could not read what a newer one writes."""

Parsed = TypeVar("Parsed", bound=BaseModel)


@dataclass(frozen=True)
class AttemptDir:
    """attempts/<n>: one try at a cell."""

    path: Path
    number: int

    @property
    def job(self) -> Path:
        return self.path / "job.json"

    @property
    def stdout(self) -> Path:
        return self.path / "stdout"

    @property
    def stderr(self) -> Path:
        return self.path / "stderr"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def exit(self) -> Path:
        return self.path / "exit.json"

    def read_exit(self) -> ExitRecord | None:
        """How it ended, or None while it has not."""
        plain = read_json(self.exit)
        return None if plain is None else parsed(ExitRecord, plain, self.exit)

    def write_exit(self, record: ExitRecord) -> None:
        write_text(self.exit, record.model_dump_json() + "\n")


@dataclass(frozen=True)
class CellDir:
    """cells/<slug>-<id>: everything about one cell."""

    path: Path

    @property
    def cell(self) -> Path:
        return self.path / "cell.json"

    @property
    def claim(self) -> Path:
        return self.path / "claim"

    @property
    def plan(self) -> Path:
        return self.path / "plan"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def evaluations(self) -> Path:
        return self.path / "eval"

    @property
    def id(self) -> str:
        return self.path.name.rpartition("-")[2]

    def read_cell(self) -> Cell:
        """The cell as it was launched. Raises RunFolderError if it is missing or cut."""
        plain = read_json(self.cell)
        if plain is None:
            raise RunFolderError(f"{self.cell} is missing; remove {self.path} or restore the file")
        return parsed(Cell, plain, self.cell)

    def write(self, cell: Cell, plan: LaunchPlan) -> None:
        """cell.json and plan/, before a launch."""
        for name, text in plan.files.items():
            write_text(self._inside(self.plan, name), text)
        write_text(self.plan / "plan.json", plan.model_dump_json(indent=1) + "\n")
        write_text(self.cell, cell.model_dump_json(indent=1) + "\n")

    def attempts(self) -> list[AttemptDir]:
        """Every attempt, oldest first."""
        root = self.path / "attempts"
        try:
            numbers = sorted(int(e.name) for e in os.scandir(root) if e.name.isdigit())
        except FileNotFoundError:
            return []
        return [AttemptDir(root / str(n), n) for n in numbers]

    def new_attempt(self) -> AttemptDir:
        """Makes the next attempt's directory; two callers never get the same one."""
        while True:
            existing = self.attempts()
            number = existing[-1].number + 1 if existing else 1
            attempt = AttemptDir(self.path / "attempts" / str(number), number)
            with telling(attempt.path), contextlib.suppress(FileExistsError):
                attempt.path.parent.mkdir(parents=True, exist_ok=True)
                attempt.path.mkdir()
                return attempt

    def place(self, attempt: AttemptDir) -> Place:
        return Place(self.plan, attempt.path, self.checkpoints)

    def is_claimed(self) -> bool:
        """Whether a living process is working on this cell. Changes nothing."""
        try:
            with self.claim.open() as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return True
                return False
        except FileNotFoundError:
            return False

    def take_claim(self, patience_seconds: float = 1.0) -> IO[str] | None:
        """The lock on this cell, held until the file is closed; None if another process has it."""
        with telling(self.claim):
            file = self.claim.open("w")
        deadline = time.monotonic() + patience_seconds  # a reader may look for a moment
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    file.close()
                    return None
                time.sleep(0.02)
            else:
                return file

    @staticmethod
    def _inside(root: Path, name: str) -> Path:
        target = Path(os.path.normpath(root / name))
        if not target.is_relative_to(root):
            raise RunFolderError(f"a plan may only write below {root}, not to {name!r}")
        return target


@dataclass(frozen=True)
class RunFolder:
    """runs/<experiment>: one spec at one scale."""

    path: Path

    @classmethod
    def of(cls, runs_dir: str | Path, name: str, scale: str) -> "RunFolder":
        """The folder of experiment `name` at a scale (`full` or `micro`), existing or not."""
        experiment = name if scale == "full" else f"{name}.{scale}"
        return cls(Path(runs_dir).absolute() / experiment)

    @property
    def experiment(self) -> str:
        return self.path.name

    @property
    def ledger(self) -> Path:
        return self.path / "ledger.jsonl"

    @property
    def spec(self) -> Path:
        return self.path / "spec.json"

    @property
    def report(self) -> Path:
        return self.path / "report"

    def cell(self, cell: Cell) -> CellDir:
        return CellDir(self.path / "cells" / cell.directory)

    @cached_property
    def _cells(self) -> Path:
        return self.path / "cells"

    def cells(self) -> list[CellDir]:
        """Every cell directory on disk, sorted by name."""
        with telling(self._cells):
            try:
                entries = sorted(e.name for e in os.scandir(self._cells) if e.is_dir())
            except FileNotFoundError:
                return []
        return [CellDir(self._cells / name) for name in entries]

    def open(self) -> None:
        """Makes the folder, or checks that it is ours and of a format we read."""
        marker = self.path / "format.json"
        self.check()
        if not marker.exists():
            with telling(self.path):
                self._cells.mkdir(parents=True, exist_ok=True)
            write_text(marker, json.dumps({"format": FORMAT, "orch": __version__}) + "\n")

    def check(self) -> None:
        """Raises RunFolderError for a folder written by a newer orch or by something else."""
        marker = self.path / "format.json"
        plain = read_json(marker)
        if plain is None:
            return
        found = plain.get("format")
        if not isinstance(found, int):
            raise RunFolderError(f"{marker} does not say a format; {self.path} is not orch's")
        if found > FORMAT:
            raise RunFolderError(
                f"{self.path} has format {found}, written by orch {plain.get('orch')}; this orch "
                f"({__version__}) reads up to format {FORMAT}. Upgrade orch, or choose another "
                "runs folder with site.runs_dir=..."
            )

    def append(self, event: str, cell_id: str, **details: Any) -> None:
        """One line of the ledger: what is about to happen, or has happened, to a cell."""
        line = json.dumps({"time": time.time(), "event": event, "cell": cell_id, **details})
        append_line(self.ledger, line)

    def events(self) -> list[dict[str, Any]]:
        """The ledger, oldest first. A torn last line is left out."""
        return list(read_lines(self.ledger))


# ---------------------------------------------------------------- reading and writing


@contextlib.contextmanager
def telling(path: Path) -> Iterator[None]:
    """Turns what the file system refuses into a sentence; FileNotFound and Exists pass."""
    try:
        yield
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError as error:
        what = {
            errno.ENOSPC: "the disk is full: free some room and run again, nothing is lost",
            errno.EDQUOT: "the quota is used up: free some room and run again, nothing is lost",
            errno.EACCES: "permission denied: make it writable, or choose another runs folder "
            "with site.runs_dir=...",
            errno.EROFS: "the file system is read-only: choose another runs folder with "
            "site.runs_dir=...",
            errno.ENOTDIR: "a part of its path is a file, not a folder",
        }.get(error.errno or 0, error.strerror or str(error))
        raise RunFolderError(f"{path}: {what}") from error


def write_text(path: Path, text: str) -> None:
    """Replaces a file as a whole: a reader sees the old text or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with telling(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


def append_line(path: Path, line: str) -> None:
    """Adds one line in a single write. Mends a file whose last line was torn by a kill."""
    with telling(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            os.write(descriptor, (("\n" if torn else "") + line + "\n").encode())
        finally:
            os.close(descriptor)


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object from disk; None if the file is not there. RunFolderError if it is cut."""
    with telling(path):
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except UnicodeDecodeError:
            text = ""
    try:
        plain = json.loads(text)
    except json.JSONDecodeError:
        plain = None
    if not isinstance(plain, dict):
        raise RunFolderError(
            f"{path} is not a JSON object (cut or overwritten?); restore or remove it"
        )
    return plain


def read_lines(path: Path, faults: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """Objects of a JSON-lines file. What cannot be read is left out and told in `faults`."""
    with telling(path):
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            return
    for number, line in enumerate(raw.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            plain = json.loads(line)
        except ValueError:
            plain = None
        if isinstance(plain, dict):
            yield plain
        elif faults is not None:
            faults.append(f"{path} line {number} is cut off; it is left out, the rest is kept")


def parsed(kind: type[Parsed], plain: Mapping[str, Any], path: Path) -> Parsed:
    """A typed object from plain data read at `path`. RunFolderError names the first fault."""
    try:
        return kind.model_validate_json(json.dumps(plain))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise RunFolderError(
            f"{path}: {first['msg']} @ $.{where}. It was changed by hand or written by another "
            "orch; restore it, or remove it to have it made again"
        ) from error


def remove_tree(path: Path) -> None:
    """Deletes a directory of ours; it is renamed first, so that a kill leaves no half."""
    doomed = path.with_name(f".removed-{path.name}-{os.getpid()}")
    with telling(path):
        path.replace(doomed)
        shutil.rmtree(doomed)
