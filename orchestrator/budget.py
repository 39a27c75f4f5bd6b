"""GPU-hours of an experiment: used, committed, left; and which cells a budget still pays. Pure but
for reading attempts."""

import math
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from orchestrator.cost import Measured, gpu_hours, measure
from orchestrator.errors import RunFolderError
from orchestrator.launch.slurm import book
from orchestrator.plan import Plan, Row
from orchestrator.progress import now_of
from orchestrator.rundir import AttemptDir, CellDir, RunFolder, read_json
from orchestrator.types import Cell

BUSY: frozenset[str] = frozenset({"submitted", "pending", "running", "unknown"})


class Scoring(NamedTuple):
    """What evaluation jobs have taken."""

    used: float = 0.0
    """GPU-hours of those that ended."""
    each: float = 0.0
    """GPU-hours that another is expected to take; 0 before the first has ended."""
    cells: int = 0
    """Cells that are scored."""


NO_SCORING = Scoring()


def scoring(folder: RunFolder) -> Scoring:
    """Of every evaluation job of an experiment that has ended."""
    hours, cells = [], set()
    for place in folder.path.glob("slurm/*/ends"):
        elements = book.read_manifest(folder, place.parent.name).get("elements", ())
        for path in place.glob("*.json"):
            with suppress(RunFolderError):  # cut: it tells nothing
                end = book.read_end(path)
                hours += [end.gpu_hours] if end and end.gpu_hours else []
            index, _, state = path.stem.partition(".")
            if state == "succeeded" and index.isdigit() and int(index) < len(elements):
                cells.add(elements[int(index)][0])
    return Scoring(sum(hours), sum(hours) / max(1, len(hours)), len(cells))


class Afforded(NamedTuple):
    """Which of the cells that are to be trained a budget pays, in the order of the spec."""

    paid: tuple[Cell, ...]
    unpaid: tuple[Cell, ...]
    told: str
    """What is used, and what is left: of the budget, or of the cells."""


def used(rows: Iterable[Row]) -> float:
    """GPU-hours that every attempt of these cells has taken, also those that left no word."""
    return sum(
        _hours(attempt, row.cell)
        for row in rows
        if row.cell is not None and _gpus(row.cell)
        for attempt in row.directory.attempts()
    )


def remaining(cell: Cell, directory: CellDir, measured: Measured | None) -> float:
    """GPU-hours from where the cell's last attempt is to its end; NaN if its size is unknown."""
    whole = gpu_hours(cell, measured)
    step = max((now_of(a.path).step for a in directory.attempts()), default=0)
    return whole * max(0.0, 1 - step / cell.settings.num_train_steps)


def afford(wanted: Plan, budget: float, whole: Plan, scored: Scoring = NO_SCORING) -> Afforded:
    """The cells of `wanted` that fit into a budget for the whole experiment, after what is used and
    what is with the scheduler. A cell of unknown size is never paid: its size would be a guess.

    wanted: what is to be trained, or tried again; rows at work or over are left out. scored:
    evaluations that have ended; each cell is expected to want another like them.
    """
    measured = measure(whole.rows)
    spent = used(whole.rows) + scored.used
    committed = _sum(
        remaining(row.cell, row.directory, measured)
        for row in whole.rows
        if row.cell is not None and row.state in BUSY
    )
    trained = sum(row.state in BUSY or row.state == "succeeded" for row in whole.rows)
    committed += scored.each * max(0, trained - scored.cells)
    room = budget - spent - committed
    paid: list[Cell] = []
    unpaid: list[Cell] = []
    more: list[float] = []
    for row in wanted.rows:
        if row.cell is None or row.state in BUSY or row.state in ("succeeded", "cancelled"):
            continue
        hours = remaining(row.cell, row.directory, measured) + scored.each
        if not unpaid and hours <= room:
            paid.append(row.cell)
            room -= hours
        else:
            unpaid.append(row.cell)
            more.append(hours)
    by_jobs = f" ({scored.used:.3g} by evaluations)" if scored.used else ""
    known = f"{spent:.3g} used{by_jobs}, {committed:.3g} with the scheduler, "
    known += f"{budget - spent - committed - room:.3g} to be submitted"
    if not unpaid:
        return Afforded(
            tuple(paid), (), f"budget of {budget:g} GPU-hours: {known}, {room:.3g} left"
        )
    wants = "an unknown number of" if math.isnan(sum(more)) else f"{sum(more):.3g}"
    told = (
        f"the budget of {budget:g} GPU-hours is reached: {known}; {_cells(len(unpaid))} left, "
        f"which want{'s' if len(unpaid) == 1 else ''} {wants} GPU-hours more"
    )
    return Afforded(tuple(paid), tuple(unpaid), told)


def _sum(hours: Iterable[float]) -> float:
    """Their sum; those of unknown size count as nothing."""
    return sum((each for each in hours if not math.isnan(each)), start=0.0)


def _cells(count: int) -> str:
    return "1 cell is" if count == 1 else f"{count} cells are"


def _gpus(cell: Cell) -> int:
    return cell.resources.num_nodes * cell.resources.gpus_per_node if cell.scale == "full" else 0


def _hours(attempt: AttemptDir, cell: Cell) -> float:
    ended = attempt.read_exit()
    if ended is not None:
        return ended.gpu_hours
    job = read_json(attempt.job) or {}
    try:
        last = attempt.beat.stat().st_mtime
    except FileNotFoundError:
        return 0.0
    return max(0.0, last - float(job.get("started", last))) * _gpus(cell) / 3600
