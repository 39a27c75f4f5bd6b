"""Launching: on this machine here, on a cluster in slurm/, what runs on its nodes in node/.

    local     decides which cell starts when, in the process of `orch run`
    nursery   a process that imported the trainers once and forks a worker for each cell
    worker    one cell in one process: claim, attempt, training, how it ended; on a cluster too
    check     cells that cannot be launched, before anything is
    export    a checkpoint in its library's own format as a Hugging Face directory
    channel   the line of JSON between them
    system    what is asked of the operating system: cores, deaths of parents, signals

The disk is the truth: a cell is trained by whoever holds its claim, its intent is in the ledger
before its process exists, and how it ended is in its exit.json. Everything said over the channel
could be lost without losing a cell.
"""

from pathlib import Path
from typing import Literal, NamedTuple

from orchestrator.records import Cell, ExitRecord


class LaunchEvent(NamedTuple):
    """What `launch` tells as it goes on. `tick` comes a few times a second, whatever happens."""

    kind: Literal["started", "ended", "lost", "elsewhere", "tick"]
    """lost: its process was killed, and is started again if `again`; elsewhere: another orch
    trains it."""
    cell: Cell | None = None
    attempt_dir: Path | None = None
    exit: ExitRecord | None = None
    again: bool = False
