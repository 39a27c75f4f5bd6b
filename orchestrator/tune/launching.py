"""What a controller makes of a cell's state: that depends on who launches the cell."""

from collections.abc import Callable
from typing import Literal, NamedTuple

from orchestrator.rundir import CellDir
from orchestrator.state import RESUMABLE, Look
from orchestrator.types import ENDED

Verdict = Literal["train", "wait", "over"]
"""train: the launcher is to be handed it; wait: it is at work; over: nothing more comes of it."""


class Launching(NamedTuple):
    """One launcher's way with cells."""

    verdict: Callable[[CellDir, Look], Verdict]
    once: bool
    """Whether it is told of a cell once, and then sees to it until its end."""


def _here(_: CellDir, seen: Look) -> Verdict:
    # one that runs already may be another orch's: this machine's launcher watches that too
    if seen.state in RESUMABLE or seen.state == "running":
        return "train"
    return "over" if seen.state in ENDED or seen.state == "unknown" else "wait"


HERE = Launching(_here, once=True)
