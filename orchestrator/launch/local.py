"""Train cells on this machine to their end: decide when each cell starts, and restart lost
cells."""

import os
import re
import secrets
import signal
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from orchestrator.environments.extras import missing
from orchestrator.errors import EnvironmentFault, OrchError, RunFolderError
from orchestrator.files import read_json, write_text
from orchestrator.launch import LaunchEvent, processes
from orchestrator.launch.check import check_launchable
from orchestrator.launch.endings import Ending
from orchestrator.launch.fork_server import ForkServer, Order
from orchestrator.launch.job import NOT_OURS
from orchestrator.launch.launcher import CancelResult
from orchestrator.launch.node.gpus import machine_gpus
from orchestrator.records import Cell
from orchestrator.rundir import RESUMABLE, CellDir, CellState, RunFolder
from orchestrator.spec.site_options import NodeOptions, node_options

RELAUNCHES = 2
"""Times that one run restarts a cell whose process was killed, from its last checkpoint. After that
the next run can resume it."""
_TICK_SECONDS = 0.25
WAIT_SECONDS = 1.5 * processes.GRACE_SECONDS
DYING_SECONDS = 10.0
"""Seconds for which a killed worker may keep its claim."""


class Launched(NamedTuple):
    """The cells of a launch, each with its state when the launch returned."""

    states: tuple[tuple[Cell, CellState], ...]
    interrupted: bool = False
    """True if Ctrl-C or a signal stopped the launch. Another run continues it."""

    def count(self, *states: str) -> int:
        """Return how many cells are in one of these states."""
        return sum(state.state in states for _, state in self.states)


def launch(
    cells: Sequence[Cell],
    folder: RunFolder,
    *,
    workers: int | None = None,
    options: Mapping[str, object] | None = None,
    on_event: Callable[[LaunchEvent], None] = lambda _event: None,
) -> Launched:
    """Train every cell that still needs training. Return when all have ended.

    workers: the number of processes at the same time; None: one per core. A process trains one
    cell, or several of one shape where their backend can. Failed and cancelled cells
    are left to `retry`. If another orch is training a cell, wait for it, and take the cell over if
    that orch dies. The first Ctrl-C lets workers write what they have, the second ends them at
    once. options: `site.options`; see NodeOptions.

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
        entries = check_launchable([*waiting, *elsewhere], folder, node_options(options or {}))
        gpus = _gpus_for([*waiting, *elsewhere], node_options(options or {}))
        count = min(workers or processes.cores(), len(waiting) + len(elsewhere))
        others = {cell.id: cell for cell in elsewhere}
        with processes.Stop().listening() as stop, closing(ForkServer(entries)) as server:
            LocalLaunch(
                folder, deque(waiting), others, gpus, count, server, stop, on_event, options
            ).work()
        interrupted = stop.asked > 0
        states = _states(cells, folder)
    return Launched(states, interrupted)


def gpus_of_cell(cell: Cell) -> int:
    """Return the GPUs of this machine that a cell takes."""
    return cell.resources.num_nodes * cell.resources.gpus_per_node if cell.scale == "full" else 0


def _gpus_for(cells: Sequence[Cell], options: NodeOptions) -> list[str]:
    """Return this machine's free GPUs, by index. Raise EnvironmentFault if a cell needs more."""
    most = max(map(gpus_of_cell, cells))
    if not most:
        return []
    if not options.gpu_check:  # nobody can be asked for them: one cell after the other
        return [str(index) for index in range(most)]
    gpus = machine_gpus()
    free = [each.id for each in gpus if each.is_free]
    if len(free) < most:
        raise EnvironmentFault(
            f"a cell asks for {most} GPUs (resources), and {len(free)} of the {len(gpus)} that "
            "nvidia-smi lists here are free. Nothing was started; site=local rehearses without any"
        )
    return free


def _states(cells: Sequence[Cell], folder: RunFolder) -> tuple[tuple[Cell, CellState], ...]:
    return tuple((cell, folder.cell(cell).state()) for cell in cells)


@dataclass
class LocalLaunch:
    """The state of one launch."""

    folder: RunFolder
    waiting: deque[Cell]
    elsewhere: dict[str, Cell]
    """Cells that another process of orch is training, by id."""
    gpus: list[str]
    """The GPUs that no cell has."""
    workers: int
    server: ForkServer
    stop: processes.Stop
    on_event: Callable[[LaunchEvent], None]
    options: Mapping[str, object] | None
    running: dict[str, tuple[Cell, tuple[str, ...]]] = field(default_factory=dict)
    """Each worker's cell and its GPUs, by submission."""
    losses: Counter[str] = field(default_factory=Counter)
    """How often each cell's worker was killed."""
    ready: bool = False
    stopping: bool = False
    fault: str = ""

    def work(self) -> None:
        """Return when every cell has ended, or a person stopped the launch.

        Raise RunFolderError or OrchError if continuing is useless.
        """
        while self.running or (not self.stopping and (self.waiting or self.elsewhere)):
            if self.stop.asked:
                self._wind_down()
            if self.stop.asked > 1:
                self.server.signal_workers(signal.SIGKILL)
            if self.ready and not self.stopping:
                self._fill_slots()
            was_alive = self.server.is_alive
            messages = self.server.receive(_TICK_SECONDS)
            for message in messages:
                self._handle(message)
            # A launch that stops without workers ends the server itself. One that has ended may
            # have left messages.
            is_wanted = self.running or not self.stopping
            if is_wanted and not was_alive and not messages:
                raise OrchError(
                    "the process that starts workers was killed; run again to go on. Its last "
                    f"words: {self.server.last_lines() or 'none'}"
                )
            self._take_over()
            self.on_event(LaunchEvent("tick"))
        if self.fault:
            raise RunFolderError(self.fault)

    def _wind_down(self) -> None:
        if not self.stopping:
            self.stopping = True
            self.server.signal_workers(signal.SIGTERM)

    def _fill_slots(self) -> None:
        while (
            self.waiting
            and len(self.running) < self.workers
            and gpus_of_cell(self.waiting[0]) <= len(self.gpus)
        ):
            cell, submission = self.waiting.popleft(), secrets.token_hex(8)
            gpus = tuple(self.gpus.pop(0) for _ in range(gpus_of_cell(cell)))
            # before the process exists: a kill in between leaves an intent, and no lost process
            self.folder.append("intent", cell.id, submission=submission, launcher="local")
            self.running[submission] = cell, gpus
            text = cell.model_dump_json()
            self.server.start(Order(str(self.folder.path), submission, text, self.options, gpus))

    def _handle(self, message: dict[str, Any]) -> None:
        if "refused" in message:
            why = message["refused"]
            absent = re.search(r"No module named '([\w.]+)'", why)
            remedy = (
                missing(absent[1]) if absent else None
            ) or "`orch doctor` says what is missing"
            raise EnvironmentFault(
                f"the trainer cannot be imported: {why}. Nothing was started; {remedy}"
            )
        if "ready" in message:
            self.ready = True
        elif "ended" in message:
            self._handle_end(message["submission"], message["ended"])
        elif "fault" in message:
            self.fault = self.fault or message["fault"]
            self._wind_down()
        else:
            cell, _ = self.running[message["submission"]]
            self.on_event(LaunchEvent("started", cell))

    def _handle_end(self, submission: str, code: int) -> None:
        """Handle the end of a process: report its cell's ending, or start the cell again."""
        cell, gpus = self.running.pop(submission)
        self.gpus += gpus
        if code == NOT_OURS:
            # This is no error: the launch waits until the claim is free, and then reads what became
            # of the cell (`_take_over`).
            self.elsewhere[cell.id] = cell
            self.folder.append("withdrawn", cell.id, submission=submission)
            self.on_event(LaunchEvent("elsewhere", cell))
            return
        cell_dir = self.folder.cell(cell)
        state = cell_dir.state()
        # A code below zero is a signal. It can arrive after the exit record was written: then the
        # cell has ended all the same, and is not started again.
        killed_after_its_end = state.exit is not None and state.state not in RESUMABLE
        if code >= 0 or killed_after_its_end:
            if not self.fault:  # after a fault the launch raises, and reports no ends
                self.on_event(LaunchEvent("ended", cell, state.exit))
            return
        self.losses[cell.id] += 1
        again = not self.stopping and self.losses[cell.id] <= RELAUNCHES
        with suppress(RunFolderError):  # the run directory has the same facts
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
        self.on_event(LaunchEvent("lost", cell, again=again))

    def _take_over(self) -> None:
        """Check the cells of another process of orch. Report those that ended; train those that it
        left."""
        for cell in list(self.elsewhere.values()):
            cell_dir = self.folder.cell(cell)
            if cell_dir.is_claimed():
                continue
            state = cell_dir.state()
            del self.elsewhere[cell.id]
            if state.state in RESUMABLE:
                self.waiting.append(cell)
            else:
                self.on_event(LaunchEvent("ended", cell, state.exit))


def cancel_cell(
    cell: Cell, folder: RunFolder, why: str, read: Callable[..., CellState] = CellDir.state
) -> CancelResult:
    """Stop a cell that no scheduler has.

    read: returns the cell's state. The claim is taken first: a running worker is asked to stop and
    writes its exit record itself; one that does not react is killed.
    """
    cell_dir = folder.cell(cell)
    cell_dir.make(cell)
    deadline = time.monotonic() + WAIT_SECONDS
    signalled: set[int] = set()
    while (claim := cell_dir.take_claim(patience_seconds=0.1)) is None:
        late = time.monotonic() > deadline
        pid = _worker(cell_dir)
        if pid is not None and (late or pid not in signalled):
            signalled.add(pid)
            attempt = cell_dir.attempts()[-1]
            write_text(attempt.cancel_reason, why)
            if late and not attempt.exit.exists():
                # before the kill: without an exit record the launch would start the cell again
                attempt.write_exit(Ending("cancelled", message=why).record())
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if late else signal.SIGINT)
        # a killed worker keeps its claim until the kernel has ended it
        is_dying = signalled and time.monotonic() < deadline + DYING_SECONDS
        if late and pid is None and not is_dying:
            return CancelResult(False, "it is claimed by a process that cannot be reached here")
    with claim:
        state = read(cell_dir, claimed=True).state
        if state in {"succeeded", "failed", "unknown"}:
            return CancelResult(False, f"it has {state} already")
        # A worker that was signalled here may have written `cancelled` itself: this call did that.
        if state == "cancelled" and not signalled:
            return CancelResult(False, "it was cancelled already")
        if state != "cancelled":
            # If the last attempt had started, this makes a new one: the last attempt decides the
            # state.
            cell_dir.open_attempt().write_exit(Ending("cancelled", message=why).record())
    folder.append("cancel", cell.id)
    return CancelResult(True, "stopped" if signalled else "will not start")


def _worker(cell_dir: CellDir) -> int | None:
    """Return the process that trains the cell; None if there is none (yet) on this machine."""
    attempts = cell_dir.attempts()
    if not attempts or attempts[-1].exit.exists():
        return None
    job = read_json(attempts[-1].job) or {}
    # The pid of another machine, or of a later process with the same pid, must not get the signal.
    pid, is_local = job.get("pid"), job.get("host") == socket.gethostname()
    if not isinstance(pid, int) or not is_local or processes.birth(pid) != job.get("birth"):
        return None
    return pid
