"""Train cells on this machine to their end: decide which starts when, and restart lost ones."""

import secrets
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.errors import OrchError, RunFolderError
from orchestrator.launch import LaunchEvent, processes
from orchestrator.launch.check import check_launchable
from orchestrator.launch.fork_server import ForkServer, Order, fork_server, import_fault
from orchestrator.records import Cell
from orchestrator.rundir import RESUMABLE, CellState, RunFolder
from orchestrator.spec.site_options import NodeOptions

RELAUNCHES = 2
"""How often one run restarts a cell whose process was killed, from its last checkpoint. After that
the next run can resume it."""
_TICK_SECONDS = 0.25


class Launched(NamedTuple):
    """The cells of a launch, each with its state when the launch returned."""

    states: tuple[tuple[Cell, CellState], ...]
    interrupted: bool = False
    """Stopped by Ctrl-C or a signal; running again goes on."""

    def count(self, *states: str) -> int:
        """Return how many cells are in one of these states."""
        return sum(state.state in states for _, state in self.states)


def launch(
    cells: Sequence[Cell],
    folder: RunFolder,
    *,
    workers: int | None = None,
    on_event: Callable[[LaunchEvent], None] = lambda _event: None,
) -> Launched:
    """Train every cell that still needs training. Return when all have ended.

    workers: the number of cells at the same time; None: one per core. Failed and cancelled cells
    are left to `retry`. If another orch is training a cell, wait for it, and take the cell over if
    that orch dies. The first Ctrl-C lets workers write what they have, the second ends them at
    once.

    Raise OrchError, before anything starts, for cells that a backend cannot express. Raise
    EnvironmentFault if the trainer cannot be imported, and RunFolderError if the folder cannot be
    written.
    """
    folder.open()
    states = _states(cells, folder)
    waiting = [cell for cell, state in states if state.state in RESUMABLE]
    elsewhere = [cell for cell, state in states if state.state == "running"]
    interrupted = False
    if waiting or elsewhere:
        entries = check_launchable([*waiting, *elsewhere], folder, NodeOptions())
        count = min(workers or processes.cores(), len(waiting) + len(elsewhere))
        with processes.Stop().listening() as stop, fork_server(entries) as server:
            LocalLaunch(waiting, elsewhere, folder, count, server, stop, on_event).work()
        interrupted = stop.asked > 0
        states = _states(cells, folder)
    return Launched(states, interrupted)


def _states(cells: Sequence[Cell], folder: RunFolder) -> tuple[tuple[Cell, CellState], ...]:
    return tuple((cell, folder.cell(cell).state()) for cell in cells)


class RunningCell(NamedTuple):
    """A cell for which a worker was started."""

    cell: Cell
    slot: int


class LocalLaunch:
    """The state of one launch: which cells wait, which run, and how often each was lost."""

    def __init__(
        self,
        waiting: Sequence[Cell],
        elsewhere: Sequence[Cell],
        folder: RunFolder,
        workers: int,
        server: ForkServer,
        stop: processes.Stop,
        on_event: Callable[[LaunchEvent], None],
    ):
        self.slots = list(range(workers))
        # with a worker on every core, each has its own; with fewer, two orchs could want the same
        allowed = processes.affinity()
        self.cores = allowed if workers == len(allowed) else None
        self.waiting = deque(waiting)
        self.running: dict[str, RunningCell] = {}
        """The running cells by submission."""
        self.elsewhere = {cell.id: cell for cell in elsewhere}
        """Cells that another orch is training."""
        self.losses: Counter[str] = Counter()
        self.folder, self.server, self.stop, self.on_event = folder, server, stop, on_event
        self.ready = False
        self.stopping = False
        self.fault: str | None = None

    def work(self) -> None:
        """Return when every cell has ended, or a person stopped the launch.

        Raise RunFolderError or OrchError if continuing is useless.
        """
        while self.running or (not self.stopping and (self.waiting or self.elsewhere)):
            self._obey_person()
            if self.ready and not self.stopping:
                self._fill_slots()
            for message in self.server.channel.receive(_TICK_SECONDS):
                self._handle(message)
            if not self.server.channel.open and (self.running or not self.stopping):
                raise OrchError(
                    "the process that starts workers was killed; run again to go on. Its last "
                    f"words: {self.server.last_lines() or 'none'}"
                )
            self._take_over()
            self.on_event(LaunchEvent("tick"))
        if self.fault:
            raise RunFolderError(self.fault)

    def _obey_person(self) -> None:
        if self.stop.asked:
            self._wind_down()
        if self.stop.asked > 1:
            self.server.channel.send({"do": "kill"})

    def _wind_down(self) -> None:
        if not self.stopping:
            self.stopping = True
            self.server.channel.send({"do": "stop"})

    def _fill_slots(self) -> None:
        while self.slots and self.waiting:
            cell, slot = self.waiting.popleft(), self.slots.pop(0)
            submission = secrets.token_hex(8)
            # before the process exists: a kill in between leaves an intent, and no lost process
            self.folder.append("intent", cell.id, submission=submission, launcher="local")
            self.running[submission] = RunningCell(cell, slot)
            core = self.cores[slot] if self.cores else None
            self.server.start(
                Order(submission, str(self.folder.path), cell.model_dump_json(), core)
            )

    def _handle(self, message: dict[str, Any]) -> None:
        if "refused" in message:
            raise import_fault(message["refused"])
        if "ready" in message:
            self.ready = True
            return
        submission = message["submission"]
        cell = self.running[submission].cell
        if "started" in message:
            attempts = self.folder.cell(cell).path / "attempts"
            self.on_event(LaunchEvent("started", cell, attempts / str(message["started"])))
        elif "held" in message:
            self.elsewhere[cell.id] = cell
            self._withdraw(cell, submission, "held by another orch")
            self.on_event(LaunchEvent("elsewhere", cell))
        elif "settled" in message:
            self._withdraw(cell, submission, "settled meanwhile")
        elif "fault" in message:
            self.fault = self.fault or message["fault"]
            self._wind_down()
        elif "bug" in message:
            raise RuntimeError(f"a worker failed outside training:\n{message['bug']}")
        else:
            self._handle_end(submission, message["ended"])

    def _withdraw(self, cell: Cell, submission: str, why: str) -> None:
        self.folder.append("withdrawn", cell.id, submission=submission, why=why)

    def _handle_end(self, submission: str, code: int) -> None:
        """Handle the end of a submission's process: report the cell's ending, or start it again."""
        cell, slot = self.running.pop(submission)
        self.slots.append(slot)
        cell_dir = self.folder.cell(cell)
        state = cell_dir.state()
        attempts = cell_dir.attempts()
        directory: Path | None = attempts[-1].path if attempts else None
        killed_after_its_end = state.exit is not None and state.state not in RESUMABLE
        if code >= 0 or killed_after_its_end:
            if cell.id not in self.elsewhere and self.fault is None:
                self.on_event(LaunchEvent("ended", cell, directory, state.exit))
            return
        self.losses[cell.id] += 1
        again = not self.stopping and self.losses[cell.id] <= RELAUNCHES
        with suppress(RunFolderError):  # the run directory alone says as much
            self.folder.append(
                "ended",
                cell.id,
                submission=submission,
                state=state.state,
                failure="lost",
                signal=-code,
            )
        if again:
            self.waiting.append(cell)
        self.on_event(LaunchEvent("lost", cell, directory, again=again))

    def _take_over(self) -> None:
        """Check the cells of another orch: report those that ended, train those that it left."""
        for cell in list(self.elsewhere.values()):
            cell_dir = self.folder.cell(cell)
            if cell_dir.is_claimed():
                continue
            state = cell_dir.state()
            del self.elsewhere[cell.id]
            if state.state in RESUMABLE:
                self.waiting.append(cell)
            else:
                self.on_event(LaunchEvent("ended", cell, None, state.exit))
