"""The fork server: a process that imports the trainers once and forks a worker for each order.

    orch (local.py)  -- orders -->  fork server  -- fork -->  workers
          ^---------------- reports ----------------'-------------'

It is started as `python -m orchestrator.launch.fork_server`. It never starts a thread, so that
forking is safe, and trains nothing itself. A report can be lost without losing a cell, because
claims, the ledger and exit records are on disk. Orders are lines of JSON on its stdin: an Order, or
{"signal": number} for all workers, after which none is started. Reports are lines of JSON on one
pipe of all processes:

    {"ready": true}  {"refused": text}     of the fork server: the modules are imported, or not
    {"started": attempt}  {"held": true}  {"settled": true}  {"fault": text}  {"bug": text}
    {"ended": exit code}                   the process is gone, however it ended

The reports of the last three lines have the submission of their cell. The standard library's fork
server would import a person's own script anew in each worker, and takes its modules only once.
"""

import gc
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn, Protocol

from orchestrator.environments.extras import missing
from orchestrator.errors import EnvironmentFault, RunFolderError
from orchestrator.launch import node, processes, provenance, worker
from orchestrator.launch.endings import Ending, disk_full_error
from orchestrator.launch.processes import GRACE_SECONDS
from orchestrator.records import Cell, ExitRecord, LaunchPlan
from orchestrator.rundir import RESUMABLE, AttemptDir, CellDir, RunFolder

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
    """The fork server, as seen by orch."""

    def __init__(self, process: "subprocess.Popen[bytes]", reports: int, output: IO[bytes]):
        self._process, self._reports, self._output = process, reports, output
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

    def stop(self) -> None:
        """Let workers write what they have, then end the fork server. Wait for its end."""
        # without a worker there is nobody to wait for, and it may be importing for seconds
        if self._used:
            self.signal_workers(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=GRACE_SECONDS)
        self.signal_workers(signal.SIGKILL)
        try:
            self._process.wait(timeout=2 if self._used else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()

    def _send(self, order: Mapping[str, object]) -> None:
        orders = self._process.stdin
        with suppress(BrokenPipeError):  # it has ended: `is_alive` says so
            if orders is not None:
                orders.write(json.dumps(order).encode() + b"\n")
                orders.flush()


@contextmanager
def fork_server(modules: Iterable[str]) -> Iterator[ForkServer]:
    """Run a fork server that imports these modules. Leaving the context stops its workers.

    It has a session of its own, so that Ctrl-C reaches orch and not its workers. Its output does
    not reach the terminal.
    """
    reports, write_end = os.pipe()
    try:
        with tempfile.TemporaryFile() as output:
            program = [sys.executable, "-P", "-m", "orchestrator.launch.fork_server"]
            process = subprocess.Popen(
                [*program, str(os.getpid()), str(write_end), *sorted(set(modules))],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=[write_end],
                # In the environment, because these libraries read the number of threads when they
                # are loaded.
                env={**os.environ, **ONE_THREAD},
            )
            server = ForkServer(process, reports, output)
            try:
                yield server
            finally:
                server.stop()
    finally:
        os.close(reports)
        os.close(write_end)


def import_fault(message: str) -> EnvironmentFault:
    """Return the error for a backend's entry module that cannot be imported."""
    absent = re.search(r"No module named '([\w.]+)'", message)
    remedy = (missing(absent[1]) if absent else None) or "`orch doctor` says what is missing"
    return EnvironmentFault(
        f"the trainer cannot be imported: {message}. Nothing was started; {remedy}"
    )


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
        run_worker(order, partial(_report, reports))
    return pid


def _report(reports: int, submission: str = "", **message: object) -> None:
    with suppress(BrokenPipeError):  # orch is gone
        os.write(reports, json.dumps({**message, "submission": submission}).encode() + b"\n")


# In a worker


class Tell(Protocol):
    """A function that reports an event of a submission to orch."""

    def __call__(self, submission: str, **message: object) -> None:
        """Report one event of a submission."""


class Member(NamedTuple):
    """A claimed cell, with its attempt."""

    submission: str
    cell: Cell
    cell_dir: CellDir
    attempt: AttemptDir
    claim: IO[str]

    @property
    def job(self) -> Mapping[str, object]:
        """Return the entries of job.json that say who started the cell."""
        return {"submission": self.submission, "launcher": "local"}


def run_worker(order: Order, tell: Tell) -> NoReturn:
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
        train_cell(order, tell, stop)
    except RunFolderError as error:
        tell(order.submission, fault=str(error))
        code = 1
    except BaseException as error:
        full = disk_full_error(error, Path(order.folder))
        if full is None:
            traceback.print_exc()
            tell(order.submission, bug=traceback.format_exc()[-_LONGEST_TEXT:])
        else:
            tell(order.submission, fault=str(full))
        code = 2 if full is None else 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        # Not sys.exit: this process is a fork of the server, whose stack and exit handlers it must
        # not run.
        os._exit(code)


def train_cell(order: Order, tell: Tell, stop: worker.StopSignals) -> None:
    """Train the cell if it still needs training and no other process holds its claim."""
    folder = RunFolder(Path(order.folder))
    member = claimed(order.submission, Cell.model_validate_json(order.cell), folder, tell)
    if member is None:
        return
    cell, attempt = member.cell, member.attempt
    with member.claim as claim:

        def execute(plan: LaunchPlan) -> Ending:
            return node.run(plan, attempt, cell, order.options or {}, claim)

        worker.redirect(attempt)
        begun = partial(note_start, member, folder, tell)
        record = worker.train(cell, member.cell_dir, attempt, member.job, stop, begun, execute)
        note_end(member, folder, record)


def claimed(submission: str, cell: Cell, folder: RunFolder, tell: Tell) -> Member | None:
    """Return a cell with a new attempt, or None if it needs no training here."""
    cell_dir = folder.cell(cell)
    cell_dir.make(cell)
    claim = cell_dir.take_claim()
    if claim is None:
        tell(submission, held=True)
        return None
    # orch decided without the claim: since then another may have trained or cancelled the cell
    if cell_dir.state(claimed=True).state not in RESUMABLE:
        claim.close()
        tell(submission, settled=True)
        return None
    attempt = cell_dir.open_attempt()
    for output in (attempt.stdout, attempt.stderr):
        output.touch()
    return Member(submission, cell, cell_dir, attempt, claim)


def note_start(member: Member, folder: RunFolder, tell: Tell) -> None:
    """Append to the ledger, and report, that a cell has its job.json."""
    names = {"submission": member.submission, "attempt": member.attempt.number}
    folder.append("started", member.cell.id, pid=os.getpid(), **names)
    tell(member.submission, started=member.attempt.number)


def note_end(member: Member, folder: RunFolder, record: ExitRecord) -> None:
    """Write the exit record, which alone decides. A kill before the next line costs only that line
    in the ledger."""
    member.attempt.write_exit(record)
    names = {"submission": member.submission, "attempt": member.attempt.number}
    folder.append("ended", member.cell.id, state=record.state, failure=record.failure, **names)


if __name__ == "__main__":
    main()
