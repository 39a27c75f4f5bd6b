"""Runs cells on this machine to their end: which starts when, and what to do when one dies."""

import secrets
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.errors import OrchError, RunFolderError
from orchestrator.launch import LaunchEvent, processes
from orchestrator.launch.channel import ForkServer, fork_server, refusal
from orchestrator.launch.check import check_launchable
from orchestrator.records import Cell
from orchestrator.rundir import RESUMABLE, CellState, RunFolder
from orchestrator.spec.site_options import NodeOptions

RELAUNCHES = 2
"""How often a cell whose process was killed is started again in one run, from its last
checkpoint. After that it is left as it is, to be resumed by the next run."""
_TICK_SECONDS = 0.25


class Launched(NamedTuple):
    """What became of the cells: each as its run directory says when launch returns."""

    looks: tuple[tuple[Cell, CellState], ...]
    interrupted: bool = False
    """Stopped by Ctrl-C or a signal; running again goes on."""

    def count(self, *states: str) -> int:
        """How many cells are in one of these states."""
        return sum(seen.state in states for _, seen in self.looks)


def launch(
    cells: Sequence[Cell],
    folder: RunFolder,
    *,
    workers: int | None = None,
    on_event: Callable[[LaunchEvent], None] = lambda _event: None,
) -> Launched:
    """Trains every cell that is still to be trained, and returns when all have ended.

    workers: cells at the same time; None: one per core. Failed and cancelled cells are left to
    `retry`. Cells that another orch is training are waited for, and taken over if it dies. The
    first Ctrl-C lets workers write down what they have, the second ends them at once.
    Raises OrchError, before anything starts, for cells that a backend cannot express;
    EnvironmentFault if the trainer cannot be imported; RunFolderError if the folder cannot be
    written.
    """
    folder.open()
    looks = [(cell, folder.cell(cell).state()) for cell in cells]
    waiting = [cell for cell, seen in looks if seen.state in RESUMABLE]
    elsewhere = [cell for cell, seen in looks if seen.state == "running"]
    interrupted = False
    if waiting or elsewhere:
        entries = check_launchable([*waiting, *elsewhere], folder, NodeOptions())
        count = min(workers or processes.cores(), len(waiting) + len(elsewhere))
        with processes.Stop().listening() as stop, fork_server(entries) as held:
            LocalLaunch(waiting, elsewhere, folder, count, held, stop, on_event).work()
        interrupted = stop.asked > 0
        looks = [(cell, folder.cell(cell).state()) for cell in cells]
    return Launched(tuple(looks), interrupted)


class RunningCell(NamedTuple):
    cell: Cell
    slot: int


class LocalLaunch:
    """One launch while it lasts: who waits, who runs, who was lost how often."""

    def __init__(
        self,
        waiting: Sequence[Cell],
        elsewhere: Sequence[Cell],
        folder: RunFolder,
        workers: int,
        held: ForkServer,
        stop: processes.Stop,
        on_event: Callable[[LaunchEvent], None],
    ):
        self.slots = list(range(workers))
        # with a worker on every core, each has its own; with fewer, two orchs could want the same
        allowed = processes.affinity()
        self.cores = allowed if workers == len(allowed) else None
        self.waiting = deque(waiting)
        self.running: dict[str, RunningCell] = {}
        self.elsewhere = {cell.id: cell for cell in elsewhere}
        self.losses: Counter[str] = Counter()
        self.folder, self.held, self.stop, self.tell = folder, held, stop, on_event
        self.ready = False
        self.stopping = False
        self.fault: str | None = None

    def work(self) -> None:
        """Until every cell has ended, or a person stops it. Raises what makes going on useless."""
        while self.running or (not self.stopping and (self.waiting or self.elsewhere)):
            self._obey_person()
            if self.ready and not self.stopping:
                self._fill()
            for message in self.held.channel.receive(_TICK_SECONDS):
                self._hear(message)
            if not self.held.channel.open and (self.running or not self.stopping):
                raise OrchError(
                    "the process that starts workers was killed; run again to go on. Its last "
                    f"words: {self.held.last_words() or 'none'}"
                )
            self._take_over()
            self.tell(LaunchEvent("tick"))
        if self.fault:
            raise RunFolderError(self.fault)

    def _obey_person(self) -> None:
        if self.stop.asked:
            self._wind_down()
        if self.stop.asked > 1:
            self.held.channel.send({"do": "kill"})

    def _wind_down(self) -> None:
        if not self.stopping:
            self.stopping = True
            self.held.channel.send({"do": "stop"})

    def _fill(self) -> None:
        while self.slots and self.waiting:
            cell, slot = self.waiting.popleft(), self.slots.pop(0)
            submission = secrets.token_hex(8)
            self.folder.append("intent", cell.id, submission=submission, launcher="local")
            self.running[submission] = RunningCell(cell, slot)
            order = {
                "submission": submission,
                "folder": str(self.folder.path),
                "cell": cell.model_dump_json(),
                "core": self.cores[slot] if self.cores else None,
            }
            self.held.start(order)

    def _hear(self, message: dict[str, Any]) -> None:
        if "refused" in message:
            raise refusal(message["refused"])
        if "ready" in message:
            self.ready = True
            return
        submission = message["submission"]
        cell = self.running[submission].cell
        if "started" in message:
            attempts = self.folder.cell(cell).path / "attempts"
            self.tell(LaunchEvent("started", cell, attempts / str(message["started"])))
        elif "held" in message:
            self.elsewhere[cell.id] = cell
            self._withdraw(cell, submission, "held by another orch")
            self.tell(LaunchEvent("elsewhere", cell))
        elif "settled" in message:
            self._withdraw(cell, submission, "settled meanwhile")
        elif "fault" in message:
            self.fault = self.fault or message["fault"]
            self._wind_down()
        elif "bug" in message:
            raise RuntimeError(f"a worker failed outside training:\n{message['bug']}")
        else:
            self._bury(submission, message["ended"])

    def _withdraw(self, cell: Cell, submission: str, why: str) -> None:
        self.folder.append("withdrawn", cell.id, submission=submission, why=why)

    def _bury(self, submission: str, code: int) -> None:
        """The process of a submission is gone."""
        cell, slot = self.running.pop(submission)
        self.slots.append(slot)
        cell_dir = self.folder.cell(cell)
        seen = cell_dir.state()
        attempts = cell_dir.attempts()
        directory: Path | None = attempts[-1].path if attempts else None
        if code >= 0 or (seen.exit and seen.state not in RESUMABLE):  # killed after its last word
            if cell.id not in self.elsewhere and self.fault is None:
                self.tell(LaunchEvent("ended", cell, directory, seen.exit))
            return
        self.losses[cell.id] += 1
        again = not self.stopping and self.losses[cell.id] <= RELAUNCHES
        with suppress(RunFolderError):  # it is told by its directory already
            self.folder.append(
                "ended",
                cell.id,
                submission=submission,
                state=seen.state,
                failure="lost",
                signal=-code,
            )
        if again:
            self.waiting.append(cell)
        self.tell(LaunchEvent("lost", cell, directory, again=again))

    def _take_over(self) -> None:
        """Cells of another orch: dropped from the list when settled, taken back when it died."""
        for cell in list(self.elsewhere.values()):
            cell_dir = self.folder.cell(cell)
            if cell_dir.is_claimed():
                continue
            seen = cell_dir.state()
            del self.elsewhere[cell.id]
            if seen.state in RESUMABLE:
                self.waiting.append(cell)
            else:
                self.tell(LaunchEvent("ended", cell, None, seen.exit))
