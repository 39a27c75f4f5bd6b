"""A search on a cluster: the controller turns on a login node, or in a job, while jobs train.

Nothing here waits for a job. What was submitted is in the ledger and in the run directories, so a
controller that ends leaves its jobs at work, and the next one goes on from what they have left.
"""

import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from orchestrator.compare.phrases import counted
from orchestrator.errors import OrchError
from orchestrator.launch import system
from orchestrator.launch.slurm.options import SlurmOptions
from orchestrator.launch.slurm.policy import goes_again
from orchestrator.launch.slurm.reconcile import ELSEWHERE_SECONDS
from orchestrator.launch.slurm.submit import Submitted
from orchestrator.launch.slurm.wait import LOOK_SECONDS, Request, start
from orchestrator.rundir import CellDir
from orchestrator.state import RESUMABLE, Look, look
from orchestrator.tune.controller import Controller
from orchestrator.tune.launching import Launching, Verdict
from orchestrator.types import ENDED

T = TypeVar("T")

SLOWEST_SECONDS = 10.0
"""Between two looks at run directories when nothing happens; the scheduler is asked less often."""
UNKNOWN_SECONDS = 1800.0
"""How long a trial waits for a cell whose state nobody can tell; then it has failed."""
QUIET_SECONDS = 120.0
"""After which silence the controller says what it waits for."""


def on_cluster(options: SlurmOptions, tell: Callable[[str], None]) -> Launching:
    """How states of a cluster are read: what its retry policy allows is trained again, and a state
    that cannot be told is waited for."""
    since: dict[str, float] = {}

    def verdict(cell_dir: CellDir, seen: Look) -> Verdict:
        if seen.state in RESUMABLE or seen.state == "failed":
            return "train" if goes_again(cell_dir, seen, options) else "over"
        if seen.state != "unknown":
            since.pop(cell_dir.id, None)
        elif cell_dir.id not in since:
            since[cell_dir.id] = time.monotonic()
            tell(f"{cell_dir.slug}: {seen.fault}; its trial waits")
        elif time.monotonic() > since[cell_dir.id] + UNKNOWN_SECONDS:
            return "over"
        return "over" if seen.state in ENDED else "wait"

    return Launching(verdict, once=False)


def search_there(controller: Controller, options: SlurmOptions, *, evaluate: bool) -> bool:
    """Drives the searches to their end; False if a person stopped it first: jobs go on.

    evaluate: every cell's evaluation is a job that follows its training. Raises OrchError as
    `submit` does.
    """
    controller.folder.open()
    request = Request((), controller.folder, options, evaluate, controller.tell)
    refused = Refused(controller.tell)
    pause, quiet = LOOK_SECONDS, time.monotonic()
    with system.Stop().listening() as stop, controller.journal.controlling():
        while not stop.asked:
            before = len(controller.open)
            wanted = refused.unless(controller.turn)
            if wanted:
                sent = refused.unless(partial(start, request._replace(cells=wanted)))
                _tell_sent(sent, controller.tell)
            elif wanted is not None and controller.done:
                break
            stirs = bool(wanted) or len(controller.open) != before
            pause = LOOK_SECONDS if stirs else min(pause * 1.2, SLOWEST_SECONDS)
            if stirs:
                quiet = time.monotonic()
            elif time.monotonic() > quiet + QUIET_SECONDS:
                quiet = time.monotonic()
                controller.tell(_standing(controller))
            deadline = time.monotonic() + pause
            while time.monotonic() < deadline and not stop.asked:
                time.sleep(0.25)
        return not stop.asked


def _tell_sent(sent: Submitted | None, tell: Callable[[str], None]) -> None:
    if sent and sent.cells:
        tell(f"submitted {counted(len(sent.cells), 'cell')} as "
             f"{counted(len(sent.jobs), 'job array')}: {', '.join(sent.jobs)}")  # fmt: skip
    if sent and sent.left:
        tell(f"{counted(len(sent.left), 'cell')} left for when the queue has room "
             "(site.options.max_submit_jobs)")  # fmt: skip


def _standing(controller: Controller) -> str:
    """What is under way, in a line."""
    states = Counter(
        look(controller.folder.cell(cell)).state
        for trial in controller.open.values() for cell in trial.cells
    )  # fmt: skip
    listed = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
    return f"{counted(len(controller.open), 'trial')} under way; cells: {listed or 'none'}"


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
