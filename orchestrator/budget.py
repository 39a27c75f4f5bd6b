"""GPU-hours of an experiment: used, committed, left; and which cells a budget still pays. Pure but
for reading attempts."""

import math
from collections.abc import Iterable
from typing import NamedTuple

from orchestrator.cost import Measured, gpu_hours, measure
from orchestrator.plan import Plan, Row
from orchestrator.progress import now_of
from orchestrator.rundir import AttemptDir, CellDir, read_json
from orchestrator.types import Cell

BUSY: frozenset[str] = frozenset({"submitted", "pending", "running"})


class Afforded(NamedTuple):
    """Which of the pending cells a budget pays, in the order of the spec."""

    paid: tuple[Cell, ...]
    unpaid: tuple[Cell, ...]
    told: str
    """What is left, in a sentence; empty where everything is paid."""


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


def afford(made: Plan, budget: float, whole: Plan) -> Afforded:
    """The pending cells that fit into a budget for the whole experiment, after what is used and
    what is with the scheduler. A cell of unknown size is never paid: its size would be a guess."""
    measured = measure(whole.rows)
    spent = used(whole.rows)
    busy = [row for row in whole.rows if row.cell is not None and row.state in BUSY]
    committed = sum(
        (remaining(row.cell, row.directory, measured) for row in busy if row.cell), start=0.0
    )
    room = budget - spent - (0.0 if math.isnan(committed) else committed)
    paid: list[Cell] = []
    unpaid: list[Cell] = []
    wanted = 0.0
    for row in made.rows:
        if row.cell is None or row.state in BUSY or row.state in ("succeeded", "cancelled"):
            continue
        hours = remaining(row.cell, row.directory, measured)
        if not unpaid and hours <= room:
            paid.append(row.cell)
            room -= hours
        elif row.pending or row.state == "failed":
            unpaid.append(row.cell)
            wanted += hours
    told = ""
    if unpaid:
        more = "an unknown number of" if math.isnan(wanted) else f"{wanted:.3g}"
        told = (
            f"the budget of {budget:g} GPU-hours is reached: {spent:.3g} used, "
            f"{committed:.3g} with the scheduler, {budget - spent - committed - room:.3g} to be "
            f"submitted; {len(unpaid)} cells are left, which want {more} GPU-hours more"
        )
    return Afforded(tuple(paid), tuple(unpaid), told)


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
