"""What the launchers of SLURM and of a Ray do alike: states, cancelling, ending frozen workers."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from orchestrator.files import read_json
from orchestrator.launch.endings import Ending
from orchestrator.launch.launcher import CancelResult
from orchestrator.launch.local import cancel_cell
from orchestrator.launch.looks import Looks
from orchestrator.launch.ray import look as ray_look
from orchestrator.launch.slurm import poll
from orchestrator.records import Cell, ExitRecord
from orchestrator.rundir import (
    ON_CLUSTER,
    AttemptDir,
    CellDir,
    CellState,
    RunFolder,
    SchedulerReport,
)

Order = Mapping[str, Any]
"""The order of an attempt: its submission, and where that went."""


def order_text(order: Order, cell: Cell) -> str:
    """Return an order, with its cell, as JSON."""
    return f'{json.dumps(order)[:-1]}, "cell": {cell.model_dump_json()}}}'


def polled_state(
    cell_dir: CellDir, attempt: AttemptDir, ended: ExitRecord | None
) -> SchedulerReport | None:
    """Return the report on an attempt by the scheduler, or the job server, that has its order."""
    ask = ray_look.polled_state if ray_look.is_ray(attempt) else poll.polled_state
    return ask(cell_dir, attempt, ended)


class ClusterLauncher(ABC):
    """A cluster whose attempts have orders, and that is asked how their jobs are."""

    looks: ClassVar[Looks[Any, Any]]
    """The cluster's answers."""

    def __init__(self, folder: RunFolder):
        self.folder = folder

    def state_of(self, cell_dir: CellDir, *, claimed: bool = False) -> CellState:
        """Return the state of a cell; see CellDir.state."""
        return cell_dir.state(claimed=claimed, poll=polled_state)

    @abstractmethod
    def end_jobs(self, orders: Sequence[Order]) -> str:
        """Ask the cluster to end jobs. Return a sentence on why it did not take the request."""

    def cancel(self, cells: Sequence[Cell], why: str) -> Sequence[CancelResult]:
        """Write exit records that cancel the cells, then end their jobs.

        A job that starts, or continues, then finds its cell cancelled, even if the cluster does not
        answer.
        """
        self.folder.open()
        before: dict[str, CellState] = {}
        orders: list[Order] = []
        self.looks.forget()
        with self.looks.one():
            for cell in cells:
                cell_dir = self.folder.cell(cell)
                state = self.state_of(cell_dir)
                # Also cells of unknown state: the cluster may be silent for hours.
                if state.state not in ON_CLUSTER | {"unknown"} or not cell_dir.is_submitted():
                    continue
                orders.append(cell_dir.attempts()[-1].read_order())
                # If the attempt runs, this makes a newer one. Its worker then ends itself.
                cell_dir.open_attempt().write_exit(Ending("cancelled", message=why).record())
                self.folder.append("cancel", cell.id)
                before[cell.id] = state
        fault = self.end_jobs(orders)
        if fault:
            fault += (
                "; jobs that run end by themselves within seconds, those that wait will end when "
                "they start"
            )
        results = []
        for cell in cells:
            if cell.id not in before:
                results.append(cancel_cell(cell, self.folder, why, self.state_of))
                continue
            was_running = before[cell.id].state == "running"
            note = fault or ("stopped" if was_running else "will not start")
            results.append(CancelResult(True, note))
        return results

    def end_frozen(self, cells: Iterable[tuple[Cell, CellState]]) -> list[str]:
        """End the jobs of cells whose worker is frozen, so that other jobs continue them. Return
        sentences.

        The exit record has the class `hung` and names the node, so that the next attempt avoids it.
        A worker that wakes up later sees that its attempt was superseded, and writes nothing more.
        """
        sentences, orders = [], []
        for cell, state in cells:
            attempt = self.folder.cell(cell).attempts()[-1]
            if attempt.exit.exists():
                continue
            job = read_json(attempt.job) or {}
            host = str(job.get("host", ""))
            ending = Ending("failed", failure="hung", message=state.fault, host=host)
            attempt.write_exit(ending.record(job.get("started")))
            orders.append(attempt.read_order())
            sentences.append(f"{cell.slug}: {state.fault.partition('.')[0]}; its job is ended")
        self.end_jobs(orders)
        return sentences
