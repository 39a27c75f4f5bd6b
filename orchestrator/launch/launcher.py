"""The interface of launchers: what orch requires of a place where cells are trained.

`LocalLauncher` (local) and `SlurmLauncher` (slurm/submit) are two; another one inherits the tests
of orchestrator.testing.launcher_contract. In every place the run directory is the protocol: a
launcher writes attempts as launch/README.md describes, and every stage after training reads the
disk.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from orchestrator.launch.logs import Stream
from orchestrator.records import Cell
from orchestrator.rundir import CellDir, CellState, RunFolder


class PlannedJob(NamedTuple):
    """The resources that the jobs of cells of one shape request."""

    cells: int
    nodes: int
    gpus_per_node: int
    cpus: int | None
    """Per node; None: what the place gives by itself."""
    memory: str
    """Per node."""
    exclusive: bool
    hours: float | None
    """The limit of one job; None: none."""

    def __str__(self) -> str:
        gpus = f"{self.gpus_per_node} GPUs, " if self.gpus_per_node else ""
        cpus = "the cluster's default of CPUs" if self.cpus is None else f"{self.cpus} CPUs"
        alone = ", no other job beside it" if self.exclusive else ""
        nodes = "1 node" if self.nodes == 1 else f"{self.nodes} nodes, each"
        limit = "" if self.hours is None else f"; {self.hours:g} h"
        return f"{nodes} with {gpus}{cpus}, {self.memory}{alone}{limit}"


class CancelResult(NamedTuple):
    """The result of cancelling one cell."""

    done: bool
    note: str
    """The way it was stopped, or the reason why nothing was done."""


class Launcher(Protocol):
    """A place where the cells of one folder are trained.

    Any method may be called by several processes at once, and any of them may be killed.
    """

    @property
    def folder(self) -> RunFolder:
        """The run directories of the cells."""

    def submit(self, cells: Sequence[Cell]) -> Sequence[Cell]:
        """Have the cells trained that need it and that nobody trains; return those.

        It may return before they have ended, or after. Cells that failed or were cancelled are left
        alone, until a person retries them. Raise OrchError, before anything starts, for cells that
        a backend cannot express.
        """

    def ask(self, cells: Sequence[Cell]) -> Sequence[CellState]:
        """Return the state of each cell, without changing anything.

        What cannot be found out is `unknown`, never guessed.
        """

    def cancel(self, cells: Sequence[Cell], why: str) -> Sequence[CancelResult]:
        """Stop the cells that run, and keep the others from starting until they are retried.

        Return a result for each cell. Cells that have succeeded, failed or been cancelled stay as
        they are. A place that does not answer does not save a cell: the cell is cancelled on disk,
        and the note describes the state of its job.
        """

    def logs(
        self, cell: Cell, stream: Stream = "stdout", *, lines: int = 50, attempt: int | None = None
    ) -> str:
        """Return the last lines that an attempt printed; of the last one that started, for None.

        Raise SelectionError if there is no such attempt.
        """

    def resources(self, cells: Sequence[Cell]) -> Sequence[PlannedJob]:
        """Return the resources that jobs of these cells request, one entry for each shape of
        cell.
        """


ReadState = Callable[..., CellState]
"""CellDir.state, or a function with its first argument and `claimed`."""


def state_on_disk(cell_dir: CellDir, *, claimed: bool = False) -> CellState:
    """Return the state of a cell that no scheduler has."""
    return cell_dir.state(claimed=claimed)
