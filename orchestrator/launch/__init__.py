"""Launching: on this machine in this package, on a cluster in slurm/ and ray/, on nodes in node/.

    launcher     the jobs that cells ask for, and the result of a cancellation
    launchers    the places that train: what jobs ask for there, and cancelling
    local        decides which cell starts when, in the process of `orch run`
    fork_server  a process that imports the trainers once and forks a worker for each cell
    worker       one cell in one process: claim, attempt, training, ending; on a cluster too
    program      runs a program to its end, and stops it with all it started
    endings      how an attempt ended, and the classes of failure
    progress     whether a cell that was started again got any further
    cluster_launcher  what SLURM's and a Ray's launchers do alike
    job          one attempt inside a job of a cluster
    looks        answers of a scheduler, kept for seconds
    check        refuses, before a launch, cells that cannot be launched
    export       a checkpoint in its library's own format as a Hugging Face directory
    hub_data     models, tokenizers and data in the hub's cache
    logs         the last lines of what attempts printed
    processes    questions to the operating system: cores, deaths of parents, signals
    provenance   the source of orch that is running

The disk is the truth. The process that holds a cell's claim trains the cell. The cell's intent is
in the ledger before its process exists, and its ending is in exit.json. Every message between orch,
the fork server and a worker can be lost without losing a cell.
"""

from typing import Literal, NamedTuple

from orchestrator.records import Cell, ExitRecord


class LaunchEvent(NamedTuple):
    """An event of `launch`. A `tick` comes a few times per second, even if nothing happens."""

    kind: Literal["started", "ended", "lost", "elsewhere", "tick"]
    """lost: the cell's process was killed; `again` is True if it is started again. elsewhere:
    another process of orch trains the cell."""
    cell: Cell | None = None
    exit: ExitRecord | None = None
    again: bool = False
