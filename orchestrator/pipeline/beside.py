"""MLflow beside a run: a process that copies each cell as it ends, and again when it is scored.

MLflow's client takes CPU time and sets variables of its whole process, so it has a process of its
own. It works while the trainers and the evaluation work, and does the rest when it is told that all
is there. If it or the run is killed, the next `orch report` completes the store.

    python -m orchestrator.pipeline.beside      reads the experiment, then `finish`, from its input
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple

from orchestrator.errors import EnvironmentFault, OrchError
from orchestrator.evaluate import score_index
from orchestrator.records import Cell, Record, Spec
from orchestrator.rundir import AttemptDir, RunFolder
from orchestrator.runs.collect import collect
from orchestrator.runs.experiment import Experiment
from orchestrator.tracking.mirror import Mirror, MirrorReport

LOOK_SECONDS = 0.5
SHARE_LOOKING = 0.05
"""Largest share of time for looking for cells that have ended or have new scores."""
CELLS_AT_ONCE = 8
"""Cells that are copied between two looks, and after the run was interrupted."""
FINISH = "finish"
_END_SECONDS = 20.0


class MirrorBeside:
    """The process, as the run sees it. Leaving the context ends it after the run in its hands."""

    def __init__(self, experiment: Experiment):
        self._experiment = experiment
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "MirrorBeside":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is None:
            return
        with suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def start(self) -> None:
        """Start the process, unless it runs."""
        if self._process is not None:
            return
        given = {
            "spec": self._experiment.spec.model_dump_json(),
            "cells": [cell.model_dump_json() for cell in self._experiment.cells],
            "folder": str(self._experiment.folder.path),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator.pipeline.beside"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the run, which then closes the input
        )
        self._send(json.dumps(given))

    def finish(self) -> MirrorReport:
        """Copy all that is there now. Raise EnvironmentFault if MLflow cannot be written."""
        self.start()
        self._send(FINISH)
        if self._process is None or self._process.stdout is None:
            raise EnvironmentFault(_ENDED)
        answer = self._process.stdout.readline()
        try:
            plain = json.loads(answer)
        except ValueError:
            raise EnvironmentFault(_ENDED) from None
        if "fault" in plain:
            raise EnvironmentFault(plain["fault"])
        return MirrorReport(**plain)

    def _send(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with suppress(BrokenPipeError):  # `finish` then finds no answer
                self._process.stdin.write(line.encode() + b"\n")
                self._process.stdin.flush()


_ENDED = (
    "the process that copies results to MLflow ended before it was done. Nothing is lost: the run "
    "directories hold everything, and `orch report` mirrors what is missing"
)


# ---------------------------------------------------------------- in the process


class _Look(NamedTuple):
    """What decides whether a cell is copied again."""

    ended: bool
    files: tuple[str, ...]
    """Names in its folders of attempts and of evaluations."""


class _Follower:
    """Copies the cells of an experiment as they end and as their scores appear."""

    def __init__(
        self, spec: Spec, cells: Sequence[Cell], folder: RunFolder, lines: "SimpleQueue[str]"
    ):
        self._spec, self._cells, self._folder, self._lines = spec, cells, folder, lines
        self._seen: dict[str, _Look] = {}
        self._copied: dict[str, _Look] = {}
        self._records: dict[str, Record] = {}

    def follow(self) -> MirrorReport | None:
        """Copy cells until the run says `finish`, then everything. Return None if the run ended."""
        try:
            with Mirror(self._spec, self._folder) as mirror:
                while self._lines.empty():
                    seconds = self._copy_some(mirror)
                    with suppress(Empty):
                        self._lines.put(self._lines.get(timeout=seconds))
                return self._complete(mirror) if self._lines.get() == FINISH else None
        except EnvironmentFault:
            if self._lines.get() != FINISH:
                return None
            # MLflow may answer by now; if it does not, this is told.
            with Mirror(self._spec, self._folder) as mirror:
                return self._complete(mirror)

    def _copy_some(self, mirror: Mirror) -> float:
        """Copy some of the cells that have changed and are quiet since the last look. Return the
        seconds until the next look."""
        began = time.monotonic()
        looks = {cell.id: self._look(cell) for cell in self._cells}
        waiting = [
            cell
            for cell in self._cells
            if looks[cell.id].ended
            and looks[cell.id] == self._seen.get(cell.id)
            and looks[cell.id] != self._copied.get(cell.id)
        ]
        self._seen = looks
        seconds_looking = time.monotonic() - began
        if waiting:
            self._add(mirror, waiting[:CELLS_AT_ONCE])
        if len(waiting) > CELLS_AT_ONCE:
            return 0.0
        return max(LOOK_SECONDS, seconds_looking / SHARE_LOOKING)

    def _add(self, mirror: Mirror, cells: Sequence[Cell]) -> None:
        records = self._collected(cells)
        index = score_index(cells, self._spec.evaluation, self._folder)
        mirror.add(records, index.scores, self._cells)
        self._copied.update({cell.id: self._seen[cell.id] for cell in cells})

    def _complete(self, mirror: Mirror) -> MirrorReport:
        changed = [c for c in self._cells if self._look(c) != self._copied.get(c.id)]
        self._collected(changed)
        records = [self._records[cell.id] for cell in self._cells]
        index = score_index(self._cells, self._spec.evaluation, self._folder)
        return mirror.complete(records, index.scores)

    def _collected(self, cells: Sequence[Cell]) -> list[Record]:
        records = collect(cells, self._folder)
        self._records.update({record.cell.id: record for record in records})
        return records

    def _look(self, cell: Cell) -> _Look:
        """Look at the disk alone: this happens often, and must not ask a scheduler."""
        directory = self._folder.cell(cell)
        attempts = _names(directory.path / "attempts")
        last = max(filter(str.isdecimal, attempts), key=int, default=None)
        ended = (
            last is not None
            and AttemptDir(directory.path / "attempts" / last, int(last)).exit.exists()
        )
        return _Look(ended, (*attempts, *_names(directory.evaluations)))


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        return []


def main() -> None:
    """Follow the experiment on standard input. Print the report, or a fault, as JSON."""
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no answer
    given = json.loads(sys.stdin.readline())
    spec = Spec.model_validate_json(given["spec"])
    cells = [Cell.model_validate_json(text) for text in given["cells"]]
    lines: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=lambda: lines.put(sys.stdin.readline().strip()), daemon=True).start()
    try:
        report = _Follower(spec, cells, RunFolder(Path(given["folder"])), lines).follow()
        plain = None if report is None else asdict(report)
    except OrchError as error:
        plain = {"fault": str(error)}
    if plain is not None:
        print(json.dumps(plain), file=answer, flush=True)


if __name__ == "__main__":
    main()
