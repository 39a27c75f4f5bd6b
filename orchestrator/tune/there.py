"""A search on a cluster: the controller turns on a login node, or in a job, while jobs train.

Nothing here waits for a job. What was submitted is in the ledger and in the run directories, so a
controller that ends leaves its jobs at work, and the next one goes on from what they have left.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from orchestrator.errors import OrchError
from orchestrator.launch import Event, system
from orchestrator.launch.slurm.options import SlurmOptions
from orchestrator.launch.slurm.policy import goes_again
from orchestrator.launch.slurm.reconcile import ELSEWHERE_SECONDS
from orchestrator.launch.slurm.wait import LOOK_SECONDS, Request, start
from orchestrator.rundir import CellDir
from orchestrator.state import RESUMABLE, Look
from orchestrator.tune.controller import Controller
from orchestrator.tune.launching import Launching, Verdict
from orchestrator.types import ENDED

T = TypeVar("T")

SLOWEST_SECONDS = 10.0
"""Between two looks at run directories when nothing happens; the scheduler is asked less often."""


def on_cluster(options: SlurmOptions, tell: Callable[[str], None]) -> Launching:
    """How states of a cluster are read: what its retry policy allows is trained again, and a state
    that cannot be told is waited for."""
    told: set[str] = set()

    def verdict(cell_dir: CellDir, seen: Look) -> Verdict:
        if seen.state in RESUMABLE or seen.state == "failed":
            return "train" if goes_again(cell_dir, seen, options) else "over"
        if seen.state == "unknown" and cell_dir.id not in told:
            told.add(cell_dir.id)
            tell(f"{cell_dir.slug}: {seen.fault}; its trial waits")
        return "over" if seen.state in ENDED else "wait"

    return Launching(verdict, once=False)


def search_there(
    controller: Controller,
    options: SlurmOptions,
    *,
    evaluate: bool,
    on_event: Callable[[Event], None] = lambda _: None,
) -> bool:
    """Drives the searches to their end; False if a person stopped it first: jobs go on.

    evaluate: every cell's evaluation is a job that follows its training. Raises OrchError as
    `submit` does.
    """
    controller.folder.open()
    request = Request((), controller.folder, options, evaluate, controller.tell)
    refused = Refused(controller.tell)
    pause = LOOK_SECONDS
    with system.Stop().listening() as stop, controller.journal.controlling():
        while not stop.asked:
            before = len(controller.open)
            wanted = refused.unless(controller.turn)
            if wanted:
                refused.unless(partial(start, request._replace(cells=wanted)))
            elif wanted is not None and controller.done:
                break
            stirs = bool(wanted) or len(controller.open) != before
            pause = LOOK_SECONDS if stirs else min(pause * 1.2, SLOWEST_SECONDS)
            _rest(pause, stop, on_event)
        return not stop.asked


class Refused:
    """Patience with another orch that is submitting: its intent may be of a dead one of another
    machine, which is known only after a while."""

    def __init__(self, tell: Callable[[str], None]):
        self._tell, self._since = tell, 0.0

    def unless(self, asked: Callable[[], T]) -> T | None:
        """What it gives; None while another is at it. Raises what is of another kind or lasts."""
        try:
            given = asked()
        except OrchError as error:
            if type(error) is not OrchError:
                raise
            if not self._since:
                self._since = time.monotonic()
                self._tell(f"{error}; asking again")
            if time.monotonic() > self._since + 2 * ELSEWHERE_SECONDS:
                raise
            return None
        self._since = 0.0
        return given


def _rest(seconds: float, stop: system.Stop, on_event: Callable[[Event], None]) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not stop.asked:
        time.sleep(0.25)
        on_event(Event("tick"))
