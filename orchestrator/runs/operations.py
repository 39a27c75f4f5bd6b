"""Cancel, retry and prune cells that were launched.

Each operation takes the cell's claim first, so that it never touches a cell that a process is
training, and appends one line to the ledger. Doing it twice changes nothing more. A cancelled cell
has a last attempt whose exit record says so, even if it never started. A cell to be retried has a
last attempt that was made and not started.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from shutil import rmtree
from typing import NamedTuple

from orchestrator import plugins
from orchestrator.errors import RunFolderError
from orchestrator.files import remove_tree
from orchestrator.launch.launcher import CancelResult
from orchestrator.launch.launchers import holders
from orchestrator.records import Cell
from orchestrator.rundir import ON_CLUSTER, CellDir, RunFolder
from orchestrator.runs.evaluation_jobs import failed_evaluations, forgive
from orchestrator.runs.state import read_state
from orchestrator.settings import AS_SENT

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
    results: dict[str, CancelResult] = {}
    for launcher, own_cells in holders(cells, folder):
        results |= zip(
            (cell.id for cell in own_cells), launcher.cancel(own_cells, why), strict=True
        )
    return [OperationResult(folder.cell(cell), *results[cell.id]) for cell in cells]


def would_cancel(cells: Iterable[Cell], folder: RunFolder) -> list[OperationResult]:
    """Return what `cancel` would do to each cell. Change nothing."""
    return [_would_cancel(folder.cell(cell)) for cell in cells]


def _would_cancel(cell_dir: CellDir) -> OperationResult:
    state = read_state(cell_dir)
    with_scheduler = cell_dir.is_submitted() and state.state in ON_CLUSTER | {"unknown"}
    if state.state == "running":
        return OperationResult(cell_dir, True, "it is running")
    if with_scheduler:
        return OperationResult(cell_dir, True, "will not start")
    if state.state in {"succeeded", "failed", "unknown"}:
        return OperationResult(cell_dir, False, f"it has {state.state} already")
    if state.state == "cancelled":
        return OperationResult(cell_dir, False, "it was cancelled already")
    return OperationResult(cell_dir, True, "will not start")


def retry(cells: Iterable[Cell], folder: RunFolder) -> list[OperationResult]:
    """Allow failed and cancelled cells to run again, from their last checkpoint if they have one.

    On a cluster, this also allows failed evaluation jobs of trained cells.
    """
    folder.open()
    return _with_evaluations([_retry(cell, folder) for cell in cells], folder, forgive)


def would_retry(cells: Iterable[Cell], folder: RunFolder) -> list[OperationResult]:
    """Return what `retry` would do to each cell. Change nothing."""
    results = [_would_retry(folder.cell(cell)) for cell in cells]
    return _with_evaluations(results, folder, failed_evaluations)


def _with_evaluations(
    results: Sequence[OperationResult],
    folder: RunFolder,
    failed: Callable[[RunFolder, Iterable[str]], Collection[str]],
) -> list[OperationResult]:
    """Return the results, with each cell as done whose evaluation job failed.

    failed: takes directories of cells, and returns those of failed evaluations.
    """
    if not any((folder.path / name).exists() for name in ("slurm", "ray")):
        return list(results)
    again = failed(folder, [one.directory.path.name for one in results if not one.done])
    return [
        one._replace(done=True, note=_EVALUATION) if one.directory.path.name in again else one
        for one in results
    ]


def _would_retry(cell_dir: CellDir) -> OperationResult:
    if not cell_dir.path.is_dir():
        return OperationResult(cell_dir, False, _NEVER_LAUNCHED)
    state = read_state(cell_dir).state
    if state in RETRIED:
        return OperationResult(cell_dir, True, _was(state))
    if state == "unknown" and _cut_records(cell_dir):
        return OperationResult(cell_dir, True, _CUT)
    return OperationResult(cell_dir, False, _is(state))


def _cut_records(cell_dir: CellDir) -> list[Path]:
    """Return the records of its attempts that cannot be read: without them it is as it was."""
    return [path for attempt in cell_dir.attempts() for path in attempt.cut_records()]


_NEVER_LAUNCHED = "it was never launched"
_EVALUATION = "its evaluation had failed"
_CUT = "a record of it was cut"


def _was(state: str) -> str:
    return f"it had {state}" if state == "failed" else f"it was {state}"


def prune(folder: RunFolder, orphans: Iterable[CellDir]) -> list[OperationResult]:
    """Remove the directories of cells that left the spec, never one that is running."""
    folder.check()
    done = [_prune(folder, orphan) for orphan in orphans]
    for leftover in folder.leftovers():
        rmtree(leftover, ignore_errors=True)
    return done


def _retry(cell: Cell, folder: RunFolder) -> OperationResult:
    cell_dir = folder.cell(cell)
    if cell.system != AS_SENT:  # raise now, and not in the attempt, what the library refuses
        plugins.load(cell.settings.backend.name).translate(cell, cell_dir.first_paths())
    try:
        claim = cell_dir.take_claim()
    except FileNotFoundError:
        return OperationResult(cell_dir, False, _NEVER_LAUNCHED)
    if claim is None:
        return OperationResult(cell_dir, False, "it is running")
    with claim:
        state = read_state(cell_dir, claimed=True).state
        cut = _cut_records(cell_dir) if state == "unknown" else []
        if state not in RETRIED and not cut:
            return OperationResult(cell_dir, False, _is(state))
        for path in cut:
            path.rename(path.with_suffix(".cut"))
        if cell.system != AS_SENT or cell_dir.system.exists():
            cell_dir.keep_system(cell.system)
        cell_dir.new_attempt()
    folder.append("retry", cell.id)
    return OperationResult(cell_dir, True, _CUT if cut else _was(state))


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
        # Before the removal. After a kill in between the directory is still there, so the line does
        # not count yet (tracking.runs.pruned_cells).
        folder.append("pruned", orphan.id, directory=orphan.path.name)
        remove_tree(orphan.path)
    return OperationResult(orphan, True, "removed")


def _is(state: str) -> str:
    """Return `it has succeeded`, `it is running`."""
    return f"it {'has' if state in ('succeeded', 'failed') else 'is'} {state}"
