"""What a place where cells are trained says of its jobs, and of a cancellation."""

from typing import NamedTuple

from orchestrator.spec.sentences import counted


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
        gpus = f"{counted(self.gpus_per_node, 'GPU')}, " if self.gpus_per_node else ""
        cpus = "the cluster's default of CPUs" if self.cpus is None else counted(self.cpus, "CPU")
        alone = ", no other job beside it" if self.exclusive else ""
        nodes = "1 node" if self.nodes == 1 else f"{self.nodes} nodes, each"
        limit = "" if self.hours is None else f"; {self.hours:g} h"
        return f"{nodes} with {gpus}{cpus}, {self.memory}{alone}{limit}"


class CancelResult(NamedTuple):
    """The result of cancelling one cell."""

    done: bool
    note: str
    """How the cell was stopped, or why nothing was done."""
