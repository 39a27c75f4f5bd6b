"""The fork server: a process that imports the trainers once and forks a worker for each order.

    orch (local.py)  -- orders -->  fork server  -- fork -->  workers
          ^---------------- reports ----------------'-------------'

It is started as `python -m orchestrator.launch.fork_server`. It never starts a thread, so that
forking is safe, and trains nothing itself. A report can be lost without losing a cell, because
claims, the ledger and exit records are on disk. Orders are lines of JSON on its stdin: an Order, or
{"signal": number} for all workers, after which none is started. Reports are lines of JSON on one
pipe of all processes:

    {"ready": true}  {"refused": text}     of the fork server: the modules are imported, or not
    {"started": attempt}  {"fault": text}  of a worker: it trains, or failed outside training
    {"ended": exit code}                   the process is gone, however it ended

The last three have the submission of their cell. The standard library's fork server would import a
person's own script anew in each worker, and takes its modules only once.
"""

import gc
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from orchestrator.errors import RunFolderError
from orchestrator.launch import node, processes, provenance, worker
from orchestrator.launch.endings import Ending, disk_full_error
from orchestrator.launch.job import NOT_OURS
from orchestrator.launch.processes import GRACE_SECONDS
from orchestrator.records import Cell, LaunchPlan
from orchestrator.rundir import RESUMABLE, RunFolder

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
_LOOK_SECONDS = 0.05
"""Seconds after which the end of a worker is noticed."""
_LONGEST_TEXT = 900
"""Characters of a traceback in a report: a pipe takes 4,096 bytes whole, of all its writers."""


class Order(NamedTuple):
    """The order to a worker: the cell to train."""

    folder: str
    submission: str
    """The ledger's name of the cell's start."""
    cell: str
    """As JSON."""
    options: Mapping[str, object] | None = None
    """`site.options`; see NodeOptions."""
    gpus: tuple[str, ...] = ()
    """The GPUs of this machine that belong to the cell, by nvidia-smi's index."""


# In orch


class ForkServer:
    """The fork server, as seen by orch. To close it stops its workers.

    It has a session of its own, so that Ctrl-C reaches orch and not its workers. Its output does
    not reach the terminal.
    """

    def __init__(self, modules: Iterable[str]):
        self._reports, write_end = os.pipe()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  (closed in `close`)
        program = [sys.executable, "-P", "-m", "orchestrator.launch.fork_server"]
        self._process = subprocess.Popen(
            [*program, str(os.getpid()), str(write_end), *sorted(set(modules))],
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=self._output,
            start_new_session=True,
            pass_fds=[write_end],
            # In the environment, because these libraries read the number of threads when they
            # are loaded.
            env={**os.environ, **ONE_THREAD},
        )
        os.close(write_end)
        self._rest = b""
        self._used = False

    @property
    def is_alive(self) -> bool:
        """Return False if the process has ended."""
        return self._process.poll() is None

    def start(self, order: Order) -> None:
        """Send the order to start a worker."""
        self._used = True
        self._send(order._asdict())

    def signal_workers(self, number: int) -> None:
        """Send a signal to all workers, and let no other start."""
        self._send({"signal": number})

    def receive(self, timeout_seconds: float) -> list[dict[str, Any]]:
        """Return the reports that have arrived, after waiting at most `timeout_seconds` for one."""
        if not select.select([self._reports], [], [], timeout_seconds)[0]:
            return []
        # The last part is a report that has not arrived completely.
        *lines, self._rest = (self._rest + os.read(self._reports, 1 << 16)).split(b"\n")
        return [json.loads(line) for line in lines]

    def last_lines(self) -> str:
        """Return the end of the fork server's output, for a message."""
        self._output.seek(0)
        return self._output.read().decode(errors="replace")[-2000:].strip()

    def close(self) -> None:
        """Let workers write what they have, then end the fork server. Wait for its end."""
        # without a worker there is nobody to wait for, and it may be importing for seconds
        for number, seconds in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, 2.0)):
            if self._used:
                self.signal_workers(number)
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(timeout=seconds)
        self._process.kill()
        self._process.communicate()
        self._output.close()
        os.close(self._reports)

    def _send(self, order: Mapping[str, object]) -> None:
        orders = self._process.stdin
        with suppress(BrokenPipeError):  # it has ended: `is_alive` says so
            if orders is not None:
                orders.write(json.dumps(order).encode() + b"\n")
                orders.flush()


# In the fork server


def main() -> None:
    """Serve the process that the command line names, with the pipe and the modules named there."""
    processes.die_with(int(sys.argv[1]))
    reports = int(sys.argv[2])
    os.set_inheritable(reports, False)
    if _import_all(sys.argv[3:], reports):
        _serve(reports)


def _import_all(modules: Iterable[str], reports: int) -> bool:
    """Import what the workers share. Return False, and report why, if something is missing."""
    gc.disable()  # what an import makes stays: collecting took a twelfth of importing torch
    for name in modules:
        try:
            import_module(name)
        except Exception as error:
            _report(reports, refused=f"{name}: {type(error).__name__}: {error}"[:_LONGEST_TEXT])
            return False
    worker.one_thread()
    provenance.commit()  # of the code that was just imported; workers inherit the answer
    gc.freeze()  # a collection would touch, and so copy, every page that workers share
    gc.enable()
    _report(reports, ready=True)
    return True


def _serve(reports: int) -> None:
    """Fork a worker for each order, until orch is gone, or has sent a signal and the last worker
    has ended."""
    workers: dict[int, str] = {}
    closing, is_orch_there, rest = False, True, b""
    while is_orch_there and not (closing and not workers):
        if select.select([0], [], [], _LOOK_SECONDS)[0]:
            raw = os.read(0, 1 << 16)
            is_orch_there = bool(raw)
            *lines, rest = (rest + raw).split(b"\n")
            for order in map(json.loads, lines):
                if "signal" in order:
                    closing = True
                    _signal(workers, order["signal"])
                elif not closing:
                    workers[_fork(Order(**order), reports)] = order["submission"]
        for pid in list(workers):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                _report(reports, submission=workers.pop(pid), ended=code)
    _signal(workers, signal.SIGKILL)  # no worker may outlive the server


def _signal(workers: Iterable[int], number: int) -> None:
    for pid in workers:
        os.kill(pid, number)


def _fork(order: Order, reports: int) -> int:
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        processes.die_with(server)
        run_worker(order, partial(_report, reports, order.submission))
    return pid


def _report(reports: int, submission: str = "", **message: object) -> None:
    with suppress(BrokenPipeError):  # orch is gone
        os.write(reports, json.dumps({**message, "submission": submission}).encode() + b"\n")


# In a worker


def run_worker(order: Order, tell: Callable[..., None]) -> NoReturn:
    """Carry out one order, report the result, and end the process."""
    stop, code = worker.StopSignals(), 0
    try:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)  # the orders are the server's to read
        if order.gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(order.gpus)
            for name in ONE_THREAD:
                os.environ.pop(name, None)
        worker.one_thread()
        code = train_cell(order, tell, stop)
    except BaseException as error:
        fault = disk_full_error(error, Path(order.folder)) or error
        text = str(fault)
        if not isinstance(fault, RunFolderError):
            traceback.print_exc()
            text = f"a worker failed outside training:\n{traceback.format_exc()}"
        tell(fault=text[-_LONGEST_TEXT:])
        code = 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        # Not sys.exit: this process is a fork of the server, whose stack and exit handlers it must
        # not run.
        os._exit(code)


def train_cell(order: Order, tell: Callable[..., None], stop: worker.StopSignals) -> int:
    """Train the cell if it still needs training and no other process holds its claim. Return the
    exit code: NOT_OURS if nothing was trained."""
    folder, cell = RunFolder(Path(order.folder)), Cell.model_validate_json(order.cell)
    cell_dir = folder.cell(cell)
    cell_dir.make(cell)
    claim = cell_dir.take_claim()
    if claim is None:
        return NOT_OURS
    with claim:
        # orch decided without the claim: since then another may have trained or cancelled the cell
        if cell_dir.state(claimed=True).state not in RESUMABLE:
            return NOT_OURS
        attempt = cell_dir.open_attempt()
        names = {"submission": order.submission, "attempt": attempt.number}

        def announce() -> None:
            folder.append("started", cell.id, pid=os.getpid(), **names)
            tell(started=attempt.number)

        def execute(plan: LaunchPlan) -> Ending:
            return node.run(plan, attempt, cell, order.options or {}, claim)

        worker.redirect(attempt.stdout, attempt.stderr)
        job = {"submission": order.submission, "launcher": "local"}
        record = worker.train(cell, cell_dir, attempt, job, stop, announce, execute)
        # The exit record alone decides: a kill here costs only a line of the ledger.
        attempt.write_exit(record)
        folder.append("ended", cell.id, state=record.state, failure=record.failure, **names)
    return 0


if __name__ == "__main__":
    main()
