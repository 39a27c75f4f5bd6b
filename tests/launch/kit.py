"""Cells of the fake backend, the house it lives in, and orch as a process to kill."""

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from orchestrator import plugins
from orchestrator.library.protocol import Backend
from orchestrator.records import Cell, ExitRecord, Outcome
from orchestrator.rundir import AttemptDir, CellDir, RunFolder
from tests.settings import cell_of, plain

HERE = Path(__file__).parent
HOUSE = HERE / "house"
DRIVE = HERE / "drive.py"


def make_cell(
    seed: int = 0,
    instruction: str = "",
    steps: int = 3,
    *,
    learning_rate: float = 1e-3,
    **more: object,
) -> Cell:
    settings = plain(
        data={"name": "counting", "path": "counting", "instruction": instruction},
        optimizer={"learning_rate": learning_rate},
        num_train_steps=steps,
        seed=seed,
    )
    axes = {"kl": "k1.reward", "seed": str(seed)}
    return cell_of(settings, **{"slug": f"study-k1.reward-s{seed}", "axes": axes, **more})


def many(count: int, *arguments: Any, **more: Any) -> list[Cell]:
    """Cells that differ by their seed."""
    return [make_cell(seed, *arguments, **more) for seed in range(count)]


def move_in(monkeypatch: pytest.MonkeyPatch) -> Backend:
    """The fake backend, for this process and for every process it starts."""
    spec = importlib.util.spec_from_file_location(
        "fake_backend", HOUSE / "backends" / "fake" / "__init__.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    backend: Backend = module.BACKEND
    monkeypatch.setattr(plugins, "load", lambda _name: backend)
    monkeypatch.setenv("PYTHONPATH", str(HOUSE))
    return backend


def leave(folder: RunFolder, cell: Cell, *exits: ExitRecord | None) -> CellDir:
    """A cell's directory as attempts that ended like this leave it; None was killed."""
    folder.open()
    cell_dir = folder.cell(cell)
    cell_dir.make(cell)
    for record in exits:
        attempt: AttemptDir = cell_dir.new_attempt()
        attempt.job.write_text('{"pid": 1, "birth": "long ago", "host": "elsewhere"}')
        if record is not None:
            attempt.write_exit(record)
    return cell_dir


def ended(state: str = "succeeded", **more: object) -> ExitRecord:
    outcome = Outcome(kind="trained") if state == "succeeded" else None
    plain = {"state": state, "started": 10.0, "ended": 20.0, "cpu_seconds": 6.0, "outcome": outcome}
    return ExitRecord.model_validate(plain | more)


def descendants(pid: int) -> list[int]:
    """All processes that descend from one, the youngest last."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found[1:]


def processes() -> Iterator[tuple[int, list[str], dict[str, str]]]:
    """Pid, words and variables of each living process but this one, as far as they can be read."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            words, variables = (
                (entry / name).read_bytes().decode(errors="replace").split("\0")
                for name in ("cmdline", "environ")
            )
            if state not in "ZX" and int(entry.name) != os.getpid():
                own = dict(line.partition("=")[::2] for line in variables if "=" in line)
                yield int(entry.name), words, own


def program(path: Path, body: str, shell: str = "/bin/bash") -> Path:
    """Write a program that can be started."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{shell}\n{body}\n")
    path.chmod(0o755)
    return path


def units(folder: RunFolder, cell: Cell) -> list[int]:
    """The units of work that a cell has done, of all attempts, in the order it did them."""
    path = folder.cell(cell).checkpoints / "units"
    return [int(line.split()[0]) for line in path.read_text().splitlines()] if path.exists() else []


def content(folder: Path, *, without: str = "") -> dict[Path, str]:
    """The digest of each file, but of those of one name."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != without)
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


class CellsOfFolder:
    """A folder of fake cells on a site, as a person looks at it."""

    def __init__(self, folder: RunFolder):
        self.folder = folder
        self.told: list[str] = []

    def attempts(self, cell: Cell) -> list[AttemptDir]:
        return self.folder.cell(cell).attempts()

    def begun(self, cell: Cell) -> int:
        """Attempts whose job has started."""
        return sum(attempt.job.exists() for attempt in self.attempts(cell))

    def units(self, cell: Cell) -> int:
        return len(units(self.folder, cell))

    def wait_until(
        self, reached: Callable[[], object], words: Callable[[], str], seconds: float = 300
    ) -> None:
        """Return when it is so; else fail with these words."""
        deadline = time.monotonic() + seconds
        while not reached():
            assert time.monotonic() < deadline, words()
            time.sleep(0.2)


class Orch:
    """A real `launch` in a process of its own, in a terminal's stead."""

    def __init__(self, tmp_path: Path):
        self.cells_file = tmp_path / "cells.json"

    def start(
        self, cells: list[Cell], folder: RunFolder, workers: int = 2, **env: str
    ) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, str(DRIVE), *self._words(cells, folder, workers)],
            env={**os.environ, "PYTHONPATH": str(HOUSE), **env},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def ended(
        self, cells: list[Cell], folder: RunFolder, workers: int = 2, **env: str
    ) -> "subprocess.CompletedProcess[str]":
        """The same, and its end."""
        process = self.start(cells, folder, workers, **env)
        out, err = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def run(
        self, cells: list[Cell], folder: RunFolder, workers: int = 2, **env: str
    ) -> dict[str, object]:
        done = self.ended(cells, folder, workers, **env)
        assert done.stdout, done.stderr
        summary: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
        return summary

    def _words(self, cells: list[Cell], folder: RunFolder, workers: int) -> list[str]:
        self.cells_file.write_text(json.dumps([c.model_dump(mode="json") for c in cells]))
        return [str(folder.path), str(self.cells_file), str(workers)]
