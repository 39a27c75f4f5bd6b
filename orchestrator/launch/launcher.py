"""The interface of launchers: what orch requires of a place where cells are trained.

`LocalLauncher` (local), `SlurmLauncher` (slurm/submit) and `RayLauncher` (ray/submit) are three;
they pass the same tests (tests/launch/contract.py). In every place the run directory is the
protocol: a launcher writes attempts as launch/README.md describes, and every stage after training
reads the disk.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from orchestrator.records import Cell
from orchestrator.rundir import CellState, RunFolder


class PlannedJob(NamedTuple):
    """The resources that the jobs of cells of one shape request."""

    cells: int
    nodes: int
    gpus_per_node: int
    cpus: int | None
    """CPUs of each node; None: the default of the place."""
    memory: str
    """Memory of each node."""
    exclusive: bool
    hours: float | None
    """Time limit of one job, in hours; None: no limit."""

    def __str__(self) -> str:
        one = "GPU" if self.gpus_per_node == 1 else "GPUs"
        gpus = f"{self.gpus_per_node} {one}, " if self.gpus_per_node else ""
        cpus = f"{self.cpus} CPU{'' if self.cpus == 1 else 's'}"
        cpus = "the cluster's default of CPUs" if self.cpus is None else cpus
        alone = ", no other job beside it" if self.exclusive else ""
        nodes = "1 node" if self.nodes == 1 else f"{self.nodes} nodes, each"
        limit = "" if self.hours is None else f"; {self.hours:g} h"
        return f"{nodes} with {gpus}{cpus}, {self.memory}{alone}{limit}"


class CancelResult(NamedTuple):
    """The result of cancelling one cell."""

    done: bool
    note: str
    """How the cell was stopped, or why nothing was done."""


class Launcher(Protocol):
    """A place where the cells of one folder are trained.

    Any method may be called by several processes at once, and any of them may be killed.
    """

    @property
    def folder(self) -> RunFolder:
        """The run directories of the cells."""

    def submit(self, cells: Sequence[Cell]) -> Sequence[Cell]:
        """Let the cells be trained that need training and that no other process trains. Return
        these cells.

        The method may return before or after their end. It leaves out cells that failed or were
        cancelled, until a person retries them. Raise OrchError, before anything starts, for cells
        that a backend cannot express.
        """

    def ask(self, cells: Sequence[Cell]) -> Sequence[CellState]:
        """Return the state of each cell. Change nothing.

        If a state cannot be read, it is `unknown`. It is never guessed.
        """

    def cancel(self, cells: Sequence[Cell], why: str) -> Sequence[CancelResult]:
        """Stop running cells, and keep the others from starting until they are retried.

        Return one result per cell. Do not change cells that have succeeded, failed or been
        cancelled. If the place does not answer, cancel the cell on disk nevertheless; then the note
        describes the state of its job.
        """

    def resources(self, cells: Sequence[Cell]) -> Sequence[PlannedJob]:
        """Return the resources that jobs of these cells request, one entry for each shape of
        cell.
        """


ReadState = Callable[..., CellState]
"""CellDir.state, or a function with its first argument and `claimed`."""
