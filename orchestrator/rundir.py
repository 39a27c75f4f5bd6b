"""The run directory: every path in it, and every write to it. It is the protocol between processes.

    runs/mlflow.db, runs/mlartifacts/              the mirror
    runs/<experiment>/                             `<name>`, or `<name>.micro` at micro scale
      format.json  spec.json  ledger.jsonl  report/
      cells/<slug>-<id>/
        cell.json  claim  plan/  checkpoints/  exports/  eval/
        attempts/<n>/
          order.json      on a cluster: the submission that may start the attempt, and its cell
          job.json        written when the attempt starts: process, host, versions
          beat            on a cluster: the heartbeat, touched every few seconds
          stdout  stderr  metrics.jsonl
          exit.json       the exit record: how the attempt ended, written once
      slurm/<submission>/                          script, manifest and logs of one job array
      ray/<submission>/                            manifest and ending of an evaluation by a Ray job

Writes are atomic (a new file renamed over the old one) or single appends of whole lines. A cell is
worked on only by the process that holds the lock on its `claim`: the kernel releases the lock when
the process dies, so a cell is never trained twice at once on one machine. (Between the nodes of a
cluster, where locks may not reach, see launch/slurm/lease.py.) The id alone names a cell: a
directory whose slug comes from an earlier wording of the spec is still that cell's.
"""

import contextlib
import errno
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import IO, Any, NamedTuple

from orchestrator.errors import NoLocksError, RunFolderError
from orchestrator.files import (
    append_line,
    read_json,
    read_lines,
    read_object,
    take_lock,
    telling,
    write_changed_text,
    write_text,
)
from orchestrator.records import AttemptPaths, Cell, ExitRecord, LaunchPlan, State
from orchestrator.settings import System
from orchestrator.version import __version__

RESUMABLE: frozenset[str] = frozenset({"planned", "preempted", "timed_out"})
"""States from which `orch run` goes on by itself. `failed` and `cancelled` wait for `retry`."""
ON_CLUSTER: frozenset[str] = frozenset({"submitted", "pending", "running"})
"""States of a submitted attempt whose job is not over."""
COMPUTED_BY = "computed by"
"""The entry of `versions` in job.json for `Backend.computed_by`."""


class CellState(NamedTuple):
    """The state of a cell at one moment, read from its run directory."""

    state: State
    exit: ExitRecord | None = None
    """The end of the last attempt."""
    attempts: int = 0
    fault: str = ""
    """The reason of the state `unknown`: the file that cannot be read, in a sentence."""
    cut: bool = False
    """A record on disk cannot be read: the state stays `unknown` until a person does something."""


class SchedulerReport(NamedTuple):
    """A scheduler's report on a submitted attempt that has no final exit record."""

    state: State
    exit: ExitRecord | None = None
    """The end of the attempt, if only the scheduler knows it."""
    fault: str = ""
    """The reason of the state `unknown`."""


class Below:
    """A path below a folder of the protocol, as an attribute of its class."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, owner: Any, _: type | None = None) -> Path:
        """Return the path of this folder's file."""
        path: Path = owner.path / self.name
        return path


@dataclass(frozen=True)
class AttemptDir:
    """attempts/<n>: one attempt at training a cell."""

    path: Path
    number: int

    job = Below("job.json")
    """The file that a worker reads: the cell and its paths."""
    order = Below("order.json")
    """The file that names the submission, for attempts of a scheduler."""
    heartbeat = Below("beat")
    """The file that a living worker touches."""
    stdout = Below("stdout")
    """The file of the trainer's standard output."""
    stderr = Below("stderr")
    """The file of the trainer's standard error."""
    metrics = Below("metrics.jsonl")
    """The file of metrics that the embedded trainer appends to."""
    exit = Below("exit.json")
    """The file of the exit record. The attempt has ended once it is there."""
    cancel_reason = Below("wish.txt")
    """The file with the reason of a cancellation, for the worker's exit record. It is written
    before the worker is asked to stop."""

    def read_exit(self) -> ExitRecord | None:
        """Return how the attempt ended, or None while it has not."""
        return read_object(ExitRecord, self.exit)

    def write_exit(self, record: ExitRecord) -> None:
        """Write the exit record."""
        write_text(self.exit, record.model_dump_json() + "\n")

    def read_order(self) -> dict[str, Any]:
        """Return the submission, index and cell it was submitted with; {} if it was not."""
        return read_json(self.order) or {}

    def known_exit(self) -> ExitRecord | None:
        """Return how the attempt ended, or None where its record is missing or cut."""
        with contextlib.suppress(RunFolderError):
            return self.read_exit()
        return None

    def known_submission(self) -> str:
        """Return the id of its submission, or "" where its order is missing or cut."""
        with contextlib.suppress(RunFolderError):
            return str(self.read_order().get("submission", ""))
        return ""

    def cut_records(self) -> list[Path]:
        """Return its records that are there and cannot be read."""
        cut = []
        for path, read in ((self.exit, self.read_exit), (self.order, self.read_order)):
            try:
                read()
            except RunFolderError:
                cut.append(path)
        return cut


FORMAT = 1
"""Increased whenever an older orch could not read what this one writes."""

_ATTEMPT = re.compile("[1-9][0-9]{0,5}")
"""Name of an attempt's folder. A folder of another name is not ours."""
_OURS = {"cells", "ledger.jsonl", "spec.json", "report", "slurm", "ray"}


@dataclass(frozen=True)
class CellDir:
    """cells/<slug>-<id>: everything about one cell."""

    path: Path

    cell = Below("cell.json")
    """The file of the cell as it was launched."""
    claim = Below("claim")
    """The lock file of the cell. Only the process that locks it works on the cell."""
    plan = Below("plan")
    """The folder of the launch plan's files."""
    checkpoints = Below("checkpoints")
    """The folder in which the library writes checkpoints."""
    exports = Below("exports")
    """The folder of checkpoints converted to Hugging Face directories."""
    evaluations = Below("eval")
    """The folder of scores."""
    system = Below("system.json")
    """The file of settings of the machine that `orch retry` gave, over the spec's."""

    @property
    def id(self) -> str:
        """Return the cell's id."""
        return self.path.name.rpartition("-")[2]

    @property
    def slug(self) -> str:
        """Return the readable part of the directory's name."""
        return self.path.name.rpartition("-")[0]

    def read_cell(self) -> Cell:
        """Return the cell as it was launched. Raise RunFolderError if it is missing or torn."""
        cell = read_object(Cell, self.cell)
        if cell is None:
            raise RunFolderError(f"{self.cell} is missing; remove {self.path} or restore the file")
        return cell

    def make(self, cell: Cell) -> None:
        """Make the directory if there is none.

        It is made under another name and renamed, so that no reader finds it without cell.json.
        """
        if self.cell.exists():
            return
        nascent = CellDir(self.path.with_name(f".new-{self.path.name}-{os.getpid()}"))
        nascent._write_cell(cell)
        with telling(self.path):
            try:
                nascent.path.replace(self.path)
            except OSError as error:
                shutil.rmtree(nascent.path, ignore_errors=True)
                # Another process was faster: its directory stays.
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
        if not self.cell.exists():  # the directory existed without it
            self._write_cell(cell)

    def with_system(self, cell: Cell) -> Cell:
        """Return the cell with the settings of the machine that `orch retry` gave it."""
        given = read_json(self.system)
        return cell.but(system=System.model_validate(given)) if given else cell

    def keep_system(self, system: System) -> None:
        """Write system.json, for later attempts."""
        write_text(self.system, system.model_dump_json() + "\n")

    def write(self, cell: Cell, plan: LaunchPlan) -> None:
        """Write cell.json and plan/, before a launch."""
        for name, text in plan.files.items():
            target = Path(os.path.normpath(self.plan / name))
            if not target.is_relative_to(self.plan):
                raise RunFolderError(f"a plan may only write below {self.plan}, not to {name!r}")
            write_text(target, text)
        write_text(self.plan / "plan.json", plan.model_dump_json(indent=1) + "\n")
        self._write_cell(cell)

    def _write_cell(self, cell: Cell) -> None:
        write_changed_text(self.cell, cell.model_dump_json(indent=1) + "\n")

    def attempts(self) -> list[AttemptDir]:
        """Return every attempt, oldest first."""
        root = self.path / "attempts"
        with telling(root):
            try:
                with os.scandir(root) as entries:
                    numbers = sorted(int(e.name) for e in entries if _ATTEMPT.fullmatch(e.name))
            except FileNotFoundError:
                return []
        return [AttemptDir(root / str(n), n) for n in numbers]

    def new_attempt(self) -> AttemptDir:
        """Make and return the next attempt; two callers never get the same one."""
        while True:
            existing = self.attempts()
            number = existing[-1].number + 1 if existing else 1
            attempt = AttemptDir(self.path / "attempts" / str(number), number)
            # mkdir is atomic: a caller that loses it looks for the next number.
            with telling(attempt.path), contextlib.suppress(FileExistsError):
                attempt.path.parent.mkdir(parents=True, exist_ok=True)
                attempt.path.mkdir()
                return attempt

    def open_attempt(self) -> AttemptDir:
        """Return the attempt to start: the last one if it never started, else a new one."""
        attempts = self.attempts()
        last = attempts[-1] if attempts else None
        # An exit record without job.json is of an attempt that was cancelled before its start.
        if last is not None and not last.job.exists() and not last.exit.exists():
            return last
        return self.new_attempt()

    def reserve(self, order: str, *, fresh: bool = False) -> AttemptDir:
        """Return the attempt that an order (JSON) is to start, with the order written in it.

        fresh: always a new attempt. Two callers never make the same one: `rename` to an existing
        directory fails, and a reader finds no attempt without its order. Only the holder of the
        folder's submission lock may reserve an attempt that exists and never started.
        """
        attempts = self.attempts()
        last = attempts[-1] if attempts else None
        if not fresh and last is not None and not last.job.exists() and not last.exit.exists():
            write_text(last.order, order + "\n")
            return last
        root = self.path / "attempts"
        nascent = root / f".new-{socket.gethostname()}-{os.getpid()}"
        write_text(nascent / "order.json", order + "\n")
        number = last.number + 1 if last else 1
        with telling(root):
            while True:
                try:
                    nascent.rename(root / str(number))
                    return AttemptDir(root / str(number), number)
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                        raise
                    # Another process has reserved this number.
                    number += 1

    def state(self, *, claimed: bool = False, poll: "Poll | None" = None) -> CellState:
        """Return the state of the cell. Change nothing.

        The last attempt decides. Its exit.json decides if it has ended. Otherwise the cell is
        `running` while a process locks the cell's claim, and `preempted` if none does: the process
        was killed, and the cell can be resumed. An attempt without job.json never started: the cell
        is `planned`.

        claimed: True if the caller itself has locked the claim. poll: asks a scheduler about an
        attempt that was submitted to it and has no final exit record. Without `poll` such a cell is
        `submitted`, which is never started from here.
        """
        try:
            return self._state(claimed, poll)
        except RunFolderError as error:
            return CellState("unknown", fault=str(error), cut=True)

    def _state(self, claimed: bool, poll: "Poll | None") -> CellState:
        attempts = self.attempts()
        if not attempts:
            return CellState("planned")
        last, count = attempts[-1], len(attempts)
        ended = last.read_exit()
        if ended is not None and ended.state not in RESUMABLE:
            return CellState(ended.state, ended, count)
        if last.order.exists():
            report = poll(self, last, ended) if poll else SchedulerReport("submitted", ended)
            if report is not None and report.state in ON_CLUSTER:
                return CellState(report.state, report.exit, count, report.fault)
            # The attempt may have ended between reading its folder and asking the scheduler: then
            # its own record is the better one.
            late = last.read_exit()
            if late is not None and late.state not in RESUMABLE:
                return CellState(late.state, late, count)
            if report is not None:
                return CellState(report.state, report.exit, count, report.fault)
        if ended is not None:
            return CellState(ended.state, ended, count)
        if not claimed and self.is_claimed():
            return CellState("running", None, count)
        # The claim may have been released between the two looks, by a worker that wrote its record
        # just before.
        ended = last.read_exit()
        if ended is not None:
            return CellState(ended.state, ended, count)
        return CellState("preempted" if last.job.exists() else "planned", None, count)

    def is_submitted(self) -> bool:
        """Return whether the last attempt was sent to a cluster."""
        last = self.attempts()[-1:]
        return bool(last) and last[0].order.exists()

    def paths(self, attempt: AttemptDir) -> AttemptPaths:
        """Return the paths that a backend translates an attempt with."""
        return AttemptPaths(self.plan, attempt.path, self.checkpoints)

    def first_paths(self) -> AttemptPaths:
        """Return the paths of a first attempt, on disk or not: for a translation that starts
        nothing."""
        return self.paths(AttemptDir(self.path / "attempts" / "1", 1))

    def is_claimed(self) -> bool:
        """Return whether a living process works on this cell. Change nothing."""
        with telling(self.claim):
            try:
                file = self.claim.open()
            except FileNotFoundError:
                return False
        with file, contextlib.suppress(NoLocksError):  # then nobody can hold it
            # A shared lock: two readers do not take each other for a worker.
            return not take_lock(file, shared=True, wait=False)
        return False

    def take_claim(self, patience_seconds: float = 1.0) -> IO[str] | None:
        """Return the lock on this cell, held until the file is closed; None if another process
        holds it. Raise FileNotFoundError if the cell has no directory (any more), and NoLocksError
        on a file system without locks.
        """
        # `is_claimed` holds a shared lock for a moment: wait for readers to let go
        deadline = time.monotonic() + patience_seconds
        while True:
            with telling(self.claim):
                file = self.claim.open("a")
            try:
                is_held = take_lock(file, wait=False)
            except NoLocksError:
                file.close()
                raise
            if is_held and self._is_in_place(file):
                return file
            file.close()  # or pruned between opening and locking: open the new one
            if not is_held:
                if time.monotonic() > deadline:
                    return None
                time.sleep(0.02)

    def _is_in_place(self, file: IO[str]) -> bool:
        try:
            return os.path.samestat(os.fstat(file.fileno()), self.claim.stat())
        except FileNotFoundError:
            return False


Poll = Callable[[CellDir, AttemptDir, ExitRecord | None], SchedulerReport | None]
"""A function that asks a scheduler about an attempt. Arguments: its folder, and its exit record if
that is preempted or timed out. It returns None if the submission was refused or never sent, so that
nothing works on the attempt."""


@dataclass(frozen=True)
class RunFolder:
    """runs/<experiment>: one spec at one scale."""

    path: Path

    @classmethod
    def of(cls, runs_dir: str | Path, name: str, scale: str) -> "RunFolder":
        """Return the folder of experiment `name` at a scale, on disk or not."""
        experiment = name if scale == "full" else f"{name}.{scale}"
        return cls(Path(runs_dir).absolute() / experiment)

    @property
    def experiment(self) -> str:
        """Return the experiment's name, with its scale unless that is `full`."""
        return self.path.name

    ledger = Below("ledger.jsonl")
    """The file to which every launch, retry and cancellation is appended."""
    spec = Below("spec.json")
    """The file of the spec that was run last."""
    report = Below("report")
    """The folder of the report."""

    def submission(self, id_: str) -> Path:
        """Return the folder of one job array, or of one evaluation by a Ray job (`ray-...`).

        Its jobs run there; their own output lands there.
        """
        return self.path / ("ray" if id_.startswith("ray-") else "slurm") / id_

    @cached_property
    def cells_path(self) -> Path:
        """Return the folder that holds a folder for each cell."""
        return self.path / "cells"

    def cell(self, cell: Cell) -> CellDir:
        """Return the cell's directory: the one on disk with its id, else the one it will have."""
        return CellDir(self.cells_path / self.directories().get(cell.id, cell.directory))

    def cells(self) -> list[CellDir]:
        """Return every cell directory on disk, sorted by name."""
        return [CellDir(self.cells_path / name) for name in self.directories().values()]

    def directories(self) -> Mapping[str, str]:
        """Return cell id -> directory name of every cell on disk, sorted by name."""
        with telling(self.cells_path):
            try:
                changed = self.cells_path.stat().st_mtime_ns
                return _directories(str(self.cells_path), changed)
            except FileNotFoundError:
                return {}

    def open(self) -> None:
        """Make the folder, or check that orch made it in a format this orch reads."""
        marker = self.path / "format.json"
        self.check()
        if not marker.exists():
            with telling(self.path, passing=()):
                self.cells_path.mkdir(parents=True, exist_ok=True)
            write_text(marker, json.dumps({"format": FORMAT, "orch": __version__}) + "\n")

    def check(self) -> None:
        """Raise RunFolderError for a folder written by a newer orch or by something else."""
        marker = self.path / "format.json"
        plain = read_json(marker)
        if plain is None:
            return self._refuse_foreign_files()
        version = plain.get("format")
        if not isinstance(version, int):
            raise RunFolderError(f"{marker} does not say a format; {self.path} is not orch's")
        if version > FORMAT:
            raise RunFolderError(
                f"{self.path} has format {version}, written by orch {plain.get('orch')}; this orch "
                f"({__version__}) reads up to format {FORMAT}. Upgrade orch, or choose another "
                "runs folder with site.runs_dir=..."
            )
        return None

    def _refuse_foreign_files(self) -> None:
        with telling(self.path):
            try:
                names = sorted(path.name for path in self.path.iterdir())
            except FileNotFoundError:
                return
        # write_text makes a temporary file of this name: another orch may be making the folder now.
        foreign = [n for n in names if n not in _OURS and not n.startswith(".format.json.")]
        if foreign:
            raise RunFolderError(
                f"{self.path} is not orch's: it has no format.json, but {foreign[0]!r}. Choose "
                "another name for the experiment, or another runs folder with site.runs_dir=..."
            )

    def append(self, event: str, cell_id: str, **details: Any) -> None:
        """Append a line to the ledger: something is about to happen, or has happened, to a cell."""
        line = json.dumps({"time": time.time(), "event": event, "cell": cell_id, **details})
        append_line(self.ledger, line)

    def events(self) -> list[dict[str, Any]]:
        """Return the ledger, oldest first. A torn last line is left out."""
        return list(read_lines(self.ledger))


@lru_cache(maxsize=8)
def _directories(cells: str, _changed: int) -> dict[str, str]:
    """Return the directory name of each cell id.

    `_changed` is the folder's modification time, a part of the cache's key: while the folder stays
    the same, states of any number of cells list it once.
    """
    with os.scandir(cells) as entries:
        names = sorted(e.name for e in entries if not e.name.startswith(".") and e.is_dir())
    return {name.rpartition("-")[2]: name for name in names}
