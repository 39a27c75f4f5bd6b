"""What runs in the process that trains one cell: claim, attempt, training, how it ended."""

import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import NamedTuple, NoReturn

from orchestrator import __version__, plugins
from orchestrator.data import prepared
from orchestrator.errors import OrchError, RunFolderError
from orchestrator.files import write_text
from orchestrator.launch import node, processes, provenance
from orchestrator.launch.channel import Channel
from orchestrator.launch.endings import Ending, Stopped, disk_full_error, ending_of
from orchestrator.records import AttemptPaths, Cell, ExitRecord, LaunchPlan, Outcome, State
from orchestrator.rundir import RESUMABLE, AttemptDir, CellDir, RunFolder


class Order(NamedTuple):
    """What the nursery is asked to start. `submission` names this start in the ledger."""

    submission: str
    folder: str
    cell: str
    """The cell, as JSON."""
    core: int | None = None


def main(order: Order, report: Channel) -> NoReturn:
    """Runs one order and ends the process. Says what happened over `report`."""
    ask = StopSignals()
    code = 0
    try:
        if order.core is not None:
            processes.pin(order.core)
        one_thread()
        train_cell(order, report, ask)
    except RunFolderError as error:
        report.send({"fault": str(error)})
        code = 1
    except BaseException as error:
        full = disk_full_error(error, Path(order.folder))
        report.send({"fault": str(full)} if full else {"bug": traceback.format_exc()})
        code = 1 if full else 2
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        os._exit(code)


def one_thread() -> None:
    """Workers are the parallelism: each computes with one thread."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


STOP_SIGNALS: Mapping[int, State] = {signal.SIGTERM: "preempted", signal.SIGINT: "cancelled"}


class StopSignals:
    """SIGTERM asks a worker to write down what it has (preempted), SIGINT to give up (cancelled),
    or what `asked` says.

    The request interrupts the training only, never the bookkeeping around it.
    """

    def __init__(self, asked: Mapping[int, State] = STOP_SIGNALS) -> None:
        self.state: State | None = None
        self._asked = asked
        self._armed = False
        for number in asked:
            signal.signal(number, self._hear)

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        self.state = self.state or self._asked[number]
        if self._armed:
            self._armed = False
            raise Stopped(self.state)

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Inside, a request raises Stopped, also one that came before."""
        self._armed = True
        try:
            if self.state is not None:
                raise Stopped(self.state)
            yield
        finally:
            self._armed = False


def train_cell(order: Order, report: Channel, ask: StopSignals) -> None:
    """Trains the cell if it is still to be trained and nobody else is at it."""
    cell = Cell.model_validate_json(order.cell)
    folder = RunFolder(Path(order.folder))
    cell_dir = folder.cell(cell)
    cell_dir.make(cell)
    claim = cell_dir.take_claim()
    if claim is None:
        report.send({"held": True})
        return
    with claim:
        if cell_dir.state(claimed=True).state not in RESUMABLE:
            report.send({"settled": True})
            return
        attempt = cell_dir.open_attempt()

        def announce() -> None:
            folder.append(
                "started",
                cell.id,
                submission=order.submission,
                attempt=attempt.number,
                pid=os.getpid(),
            )

        def execute(plan: LaunchPlan) -> Ending:
            return node.run(plan, attempt, cell, {}, claim)

        redirect(attempt)
        report.send({"started": attempt.number})
        job = {"submission": order.submission, "launcher": "local"}
        record = train(cell, cell_dir, attempt, job, ask, announce, execute)
        attempt.write_exit(record)
        folder.append(
            "ended",
            cell.id,
            submission=order.submission,
            attempt=attempt.number,
            state=record.state,
            failure=record.failure,
        )


def train(
    cell: Cell,
    cell_dir: CellDir,
    attempt: AttemptDir,
    job: Mapping[str, object],
    ask: StopSignals,
    announce: Callable[[], None],
    execute: Callable[[LaunchPlan], Ending],
) -> ExitRecord:
    """Trains a cell in an attempt that is this process's own, and says how it ended.

    job: what job.json is to say beside the process; announce: called when it is written;
    execute: runs a plan that is a program. Raises RunFolderError where there is no room to write.
    """
    started, before = time.time(), _cpu_seconds()  # a job may have trained another cell before
    ending = _train(cell, cell_dir, attempt, job, started, ask, announce, execute)
    return _record(cell, ending, started, _cpu_seconds() - before)


def _cpu_seconds() -> float:
    """Of this process and those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def _train(
    cell: Cell,
    cell_dir: CellDir,
    attempt: AttemptDir,
    job: Mapping[str, object],
    started: float,
    ask: StopSignals,
    announce: Callable[[], None],
    execute: Callable[[LaunchPlan], Ending],
) -> Ending:
    """Everything that may go wrong with a cell without being orch's fault."""
    place = cell_dir.paths(attempt)
    try:
        with ask.interrupting():
            plan = plugins.load(cell.settings.backend.name).translate(cell, place)
            cell_dir.write(cell, plan)
            prepared.link(place.plan_dir)
            _write_job(attempt, job, plan, started)
            announce()
            if plan.entry is None:
                return execute(plan)
            return Ending("succeeded", code=0, outcome=_enter(plan.entry, cell, place))
    except RunFolderError:
        raise
    except (Exception, Stopped) as error:
        if full := disk_full_error(error, attempt.path):
            raise full from error
        if not isinstance(error, Stopped | OrchError):
            traceback.print_exc()
        ending = ending_of(error)
        if ending.state == "cancelled" and attempt.cancel_reason.exists():
            return ending._replace(message=attempt.cancel_reason.read_text())
        return ending


def _enter(entry: str, cell: Cell, place: AttemptPaths) -> Outcome:
    module, _, function = entry.partition(":")
    outcome = getattr(import_module(module), function)(cell, place)
    if not isinstance(outcome, Outcome):
        raise TypeError(f"{entry} gave {type(outcome).__name__}, not an Outcome")
    return outcome


def _write_job(
    attempt: AttemptDir, job: Mapping[str, object], plan: LaunchPlan, started: float
) -> None:
    told = {
        "pid": os.getpid(),
        "started": started,
        "argv": list(plan.argv),
        "host": processes.node_name(),
        "birth": processes.birth(os.getpid()),
        "orch": __version__,
        "commit": provenance.commit(),
        "library": f"{plan.backend} {plan.version}".strip(),
        "versions": provenance.versions() if plan.entry is not None else {},
        **job,
    }
    write_text(attempt.job, json.dumps(told) + "\n")


def redirect(attempt: AttemptDir) -> None:
    """From here on, what this process and its libraries print lands in the attempt's files."""
    for stream, number, path in ((sys.stdout, 1, attempt.stdout), (sys.stderr, 2, attempt.stderr)):
        stream.flush()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(descriptor, number)
        os.close(descriptor)
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]


def _record(cell: Cell, ending: Ending, started: float, cpu_seconds: float) -> ExitRecord:
    ended = time.time()
    gpus = cell.resources.num_nodes * cell.resources.gpus_per_node if cell.scale == "full" else 0
    return ExitRecord(
        state=ending.state,
        code=ending.code,
        failure=ending.failure,
        message=ending.message,
        outcome=ending.outcome,
        started=started,
        ended=ended,
        cpu_seconds=round(cpu_seconds, 3),
        gpu_hours=gpus * (ended - started) / 3600,
        host=processes.node_name(),
    )
