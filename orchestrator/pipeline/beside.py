"""MLflow beside a run: a process that copies each cell as it ends, and again when it is scored.

MLflow's client takes CPU time and sets variables of its whole process, so it has a process of its
own. It works while the trainers and the evaluation work, and does the rest when it hears that all
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

from orchestrator.errors import EnvironmentFault, OrchError
from orchestrator.evaluate import score_index
from orchestrator.records import Cell, Spec
from orchestrator.rundir import AttemptDir, RunFolder
from orchestrator.runs.collect import collect
from orchestrator.runs.experiment import Experiment
from orchestrator.tracking.mirror import MirrorReport, mirror

LOOK_SECONDS = 0.5
SHARE_LOOKING = 0.2
"""Largest share of time for looking at cells and for copying them."""
CELLS_AT_ONCE = 16
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


def _follow(
    spec: Spec, cells: Sequence[Cell], folder: RunFolder, lines: "SimpleQueue[str]"
) -> MirrorReport | None:
    """Copy cells until the run says `finish`, then everything. Return None if the run ended."""
    copied: dict[str, tuple[str, ...]] = {}
    before: dict[str, tuple[str, ...]] = {}
    created = 0
    with suppress(EnvironmentFault):  # MLflow may answer at the end; else the run reports it
        while lines.empty():
            began = time.monotonic()
            now = {cell.id: files for cell in cells if (files := _files_of_ended(folder, cell))}
            # A cell whose files changed since the last look is left for the next one.
            due = [c for c in cells if before.get(c.id) == now.get(c.id) != copied.get(c.id)]
            before = now
            if some := due[:CELLS_AT_ONCE]:
                created += _mirrored(spec, some, folder, cells).created
                copied |= {cell.id: now[cell.id] for cell in some}
            pause = max(LOOK_SECONDS, (time.monotonic() - began) / SHARE_LOOKING)
            with suppress(Empty):
                lines.put(lines.get(timeout=LOOK_SECONDS if len(due) > CELLS_AT_ONCE else pause))
    if lines.get() != FINISH:
        return None
    report = _mirrored(spec, cells, folder, cells)
    # A run that was made in between is not told as updated or unchanged, too.
    runs = report.created + report.updated + report.unchanged
    report.created += created
    report.updated = min(report.updated, runs - report.created)
    report.unchanged = runs - report.created - report.updated
    return report


def _mirrored(
    spec: Spec, some: Sequence[Cell], folder: RunFolder, cells: Sequence[Cell]
) -> MirrorReport:
    index = score_index(some, spec.evaluation, folder)
    return mirror(collect(some, folder), index.scores, spec, folder, cells=cells)


def _files_of_ended(folder: RunFolder, cell: Cell) -> tuple[str, ...]:
    """Return the names in the folders of attempts and evaluations of a cell that has ended; else
    nothing. Look at the disk alone: this happens often, and must not ask a scheduler."""
    directory = folder.cell(cell)
    attempts = _names(directory.path / "attempts")
    last = max(filter(str.isdecimal, attempts), key=int, default=None)
    if last is None or not AttemptDir(directory.path / "attempts" / last, int(last)).exit.exists():
        return ()
    return (*attempts, *_names(directory.evaluations))


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
        report = _follow(spec, cells, RunFolder(Path(given["folder"])), lines)
        plain = None if report is None else asdict(report)
    except OrchError as error:
        plain = {"fault": str(error)}
    if plain is not None:
        print(json.dumps(plain), file=answer, flush=True)


if __name__ == "__main__":
    main()
