"""Cancel, retry and prune cells that were launched.

Each operation takes the cell's claim first, so that it never touches a cell that a process is
training, and appends one line to the ledger. Doing it twice changes nothing more. A cancelled cell
has a last attempt whose exit record says so, even if it never started. A cell to be retried has a
last attempt that was made and not started.
"""

import os
import signal
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from shutil import rmtree
from typing import NamedTuple

from orchestrator.errors import RunFolderError
from orchestrator.files import read_json, remove_tree, write_text
from orchestrator.launch import processes
from orchestrator.launch.processes import GRACE_SECONDS
from orchestrator.launch.slurm import submit
from orchestrator.records import Cell, ExitRecord
from orchestrator.rundir import ON_CLUSTER, CellDir, CellState, RunFolder
from orchestrator.runs.evaluation_jobs import forgive
from orchestrator.runs.state import read_state

WAIT_SECONDS = 1.5 * GRACE_SECONDS
DYING_SECONDS = 10.0
"""How long a killed worker may keep its claim."""
RETRIED: frozenset[str] = frozenset({"failed", "cancelled"})


class OperationResult(NamedTuple):
    """The result for one cell: `done`, or left as it was, with the reason in `note`."""

    directory: CellDir
    done: bool
    note: str


def cancel(
    cells: Iterable[Cell], folder: RunFolder, why: str = "cancelled by a person"
) -> list[OperationResult]:
    """Stop cells that run and keep the others from starting, until they are retried.

    why: the message of their exit records. A running worker is asked to stop and writes its exit
    record itself; one that does not react is killed. Cells that have succeeded, failed or been
    cancelled are left as they are.
    """
    folder.open()
    cells = list(cells)
    submitted = [cell for cell in cells if folder.cell(cell).is_submitted()]
    if not submitted:
        return [_cancel(cell, folder, why) for cell in cells]
    cancelled, fault = submit.cancel_submitted(submitted, folder, why)
    stopped = {
        cell.id: OperationResult(folder.cell(cell), True, fault or _how(seen))
        for cell, seen in cancelled
    }
    return [stopped.get(cell.id) or _cancel(cell, folder, why) for cell in cells]


def _how(seen: CellState) -> str:
    return "stopped" if seen.state == "running" else "will not start"


def retry(cells: Iterable[Cell], folder: RunFolder) -> list[OperationResult]:
    """Let failed and cancelled cells run again, from their last checkpoint if they have one.

    On a cluster, failed evaluation jobs of trained cells go again too.
    """
    folder.open()
    cells = list(cells)
    done = [_retry(cell, folder) for cell in cells]
    if not folder.submission("").exists():
        return done
    left = [one.directory.path.name for one in done if not one.done]
    forgiven = forgive(folder, left)
    note = "its evaluation had failed"
    return [
        one._replace(done=True, note=note) if one.directory.path.name in forgiven else one
        for one in done
    ]


def prune(folder: RunFolder, orphans: Iterable[CellDir]) -> list[OperationResult]:
    """Remove the directories of cells that left the spec, never one that is running."""
    folder.check()
    done = [_prune(folder, orphan) for orphan in orphans]
    for leftover in folder.leftovers():
        rmtree(leftover, ignore_errors=True)
    return done


def _cancel(cell: Cell, folder: RunFolder, why: str) -> OperationResult:
    cell_dir = folder.cell(cell)
    cell_dir.make(cell)
    deadline = time.monotonic() + WAIT_SECONDS
    asked: set[int] = set()
    while (claim := cell_dir.take_claim(patience_seconds=0.1)) is None:
        late = time.monotonic() > deadline
        pid = _worker(cell_dir)
        if pid is not None and (late or pid not in asked):
            asked.add(pid)
            attempt = cell_dir.attempts()[-1]
            write_text(attempt.cancel_reason, why)
            if late and not attempt.exit.exists():
                # before the kill: without an exit record the launch would start the cell again
                attempt.write_exit(_cancelled(why))
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if late else signal.SIGINT)
        gone = asked and time.monotonic() < deadline + DYING_SECONDS  # or going
        if late and pid is None and not gone:
            return OperationResult(
                cell_dir, False, "it is claimed by a process that cannot be reached here"
            )
    with claim:
        state = read_state(cell_dir, claimed=True).state
        if state in {"succeeded", "failed", "unknown"}:
            return OperationResult(cell_dir, False, f"it has {state} already")
        if state == "cancelled" and not asked:
            return OperationResult(cell_dir, False, "it was cancelled already")
        if state != "cancelled":
            cell_dir.open_attempt().write_exit(_cancelled(why))
    folder.append("cancel", cell.id)
    return OperationResult(cell_dir, True, "stopped" if asked else "will not start")


def _cancelled(why: str) -> ExitRecord:
    now = time.time()
    return ExitRecord(
        state="cancelled", message=why, started=now, ended=now, host=socket.gethostname()
    )


def _worker(cell_dir: CellDir) -> int | None:
    """Return the process that trains the cell; None if there is none (yet) on this machine."""
    attempts = cell_dir.attempts()
    if not attempts or attempts[-1].exit.exists():
        return None
    job = read_json(attempts[-1].job) or {}
    pid, here = job.get("pid"), job.get("host") == socket.gethostname()
    if not isinstance(pid, int) or not here or processes.birth(pid) != job.get("birth"):
        return None
    return pid


def _retry(cell: Cell, folder: RunFolder) -> OperationResult:
    cell_dir = folder.cell(cell)
    try:
        claim = cell_dir.take_claim()
    except FileNotFoundError:
        return OperationResult(cell_dir, False, "it was never launched")
    if claim is None:
        return OperationResult(cell_dir, False, "it is running")
    with claim:
        state = read_state(cell_dir, claimed=True).state
        if state not in RETRIED:
            return OperationResult(cell_dir, False, f"it is {state}")
        cell_dir.new_attempt()
    folder.append("retry", cell.id)
    return OperationResult(
        cell_dir, True, f"it had {state}" if state == "failed" else f"it was {state}"
    )


def _prune(folder: RunFolder, orphan: CellDir) -> OperationResult:
    if not orphan.path.is_relative_to(folder.cells_path):
        raise RunFolderError(f"{orphan.path} is not a cell of {folder.path}; nothing was removed")
    try:
        claim = orphan.take_claim()
    except FileNotFoundError:
        return OperationResult(orphan, False, "it is gone already")
    if claim is not None and read_state(orphan, claimed=True).state in ON_CLUSTER:
        claim.close()
        return OperationResult(orphan, False, "it is with the scheduler; cancel it first")
    if claim is None:
        return OperationResult(orphan, False, "it is running; cancel it first")
    with claim:
        folder.append("pruned", orphan.id, directory=orphan.path.name)
        remove_tree(orphan.path)
    return OperationResult(orphan, True, "removed")
