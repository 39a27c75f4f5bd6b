"""The program of a SkyPilot task: it trains one cell on the machine that SkyPilot made.

python -m orchestrator.launch.skypilot.worker

ORCH_CELL, ORCH_RUN_FOLDER and ORCH_OPTIONS say what, where and how. The exit code is 0 if the cell
is trained, AGAIN if it may be tried again on a new machine, else 1. SkyPilot starts the program
again after a preemption; the cell then goes on from its last checkpoint in the bucket. That one
machine at a time does so is SkyPilot's promise: locks and heartbeats do not reach across a bucket.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.errors import OrchError
from orchestrator.files import write_text
from orchestrator.launch import node, worker
from orchestrator.launch.endings import Ending
from orchestrator.launch.skypilot.tasks import AGAIN
from orchestrator.launch.slurm.poll import SKYPILOT
from orchestrator.records import Cell, ExitRecord, LaunchPlan
from orchestrator.rundir import CellDir, RunFolder
from orchestrator.spec.site_options import RETRIES


def main() -> int:
    """Train the cell. Return the exit code."""
    stop = worker.StopSignals()
    console = os.fdopen(os.dup(2), "w", buffering=1)  # SkyPilot's log; the attempt has its own
    cell = Cell.model_validate_json(os.environ["ORCH_CELL"])
    options: dict[str, Any] = json.loads(os.environ["ORCH_OPTIONS"])
    folder = RunFolder(Path(os.environ["ORCH_RUN_FOLDER"]))
    try:
        folder.open()
        cell_dir = folder.cell(cell)
        cell_dir.make(cell)
        last = next(iter(cell_dir.attempts()[-1:]), None)
        ended = last.read_exit() if last else None
        if ended is not None and ended.state in ("succeeded", "cancelled"):
            console.write(f"{cell.slug} has {ended.state} already\n")
            return 0
        record = _train(cell, cell_dir, options, stop)
    except OrchError as error:
        console.write(f"{error}\n")
        return 1
    console.write(f"{cell.slug}: {record.state} {record.failure} {record.message}\n")
    return 0 if record.state == "succeeded" else AGAIN if _may_retry(cell_dir, record) else 1


def _train(
    cell: Cell, cell_dir: CellDir, options: Mapping[str, object], stop: worker.StopSignals
) -> ExitRecord:
    """Train in an attempt of its own; return how it ended."""
    attempt = cell_dir.open_attempt()
    # whoever reads the folder elsewhere sees no lock of this machine, and must not start the cell
    write_text(attempt.order, json.dumps({"submission": SKYPILOT, "index": 0}) + "\n")
    for output in (attempt.stdout, attempt.stderr):
        output.touch()
    job = {"launcher": SKYPILOT, "job": os.environ.get("SKYPILOT_TASK_ID", "")}

    def execute(plan: LaunchPlan) -> Ending:
        return node.run(plan, attempt, cell, options)

    worker.redirect(attempt)
    record = worker.train(cell, cell_dir, attempt, job, stop, lambda: None, execute)
    attempt.write_exit(record)
    return record


def _may_retry(cell_dir: CellDir, record: ExitRecord) -> bool:
    """Return True if the class of this failure has tries left, of all attempts at the cell."""
    if record.state != "failed":
        return record.state == "preempted"
    ends = [attempt.read_exit() for attempt in cell_dir.attempts()]
    count = sum(end is not None and end.failure == record.failure for end in ends)
    return count <= RETRIES.get(record.failure, 0)


if __name__ == "__main__":
    sys.exit(main())
