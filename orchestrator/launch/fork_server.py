"""The fork server: a process that imports the trainers once and forks a worker for each cell.

    orch (local.py)  <-- channel -->  fork server  <-- channel -->  worker, one per cell

It is started as `python -m orchestrator.launch.fork_server`. It never starts a thread, so that
forking is safe, and trains nothing itself. A message can be lost without losing a cell, because
claims, the ledger and exit records are on disk. Messages to the fork server:

    {"do": "prepare", "modules": [...]}    import these; answered by `ready` or `refused`
    {"do": "start", "order": {...}}        fork a worker; see Order
    {"do": "stop"}                         SIGTERM to workers: they write what they have
    {"do": "kill"}                         SIGKILL to workers

Messages from it, each with the submission of its worker:

    {"started": attempt}  {"held": true}  {"settled": true}  {"fault": text}  {"bug": text}
    {"finished": true}                     one cell of several has its exit record
    {"ended": exit code}                   the process is gone, however it ended
"""

import gc
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

from orchestrator.environments.extras import missing
from orchestrator.errors import EnvironmentFault, RunFolderError
from orchestrator.launch import node, processes, provenance, together, worker
from orchestrator.launch.endings import Ending, disk_full_error
from orchestrator.launch.processes import GRACE_SECONDS
from orchestrator.records import Cell, LaunchPlan
from orchestrator.rundir import RESUMABLE, RunFolder

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


class Channel:
    """A socket that carries complete JSON objects.

    Both ends read often, so that sending never waits for the other end.
    """

    def __init__(self, end: socket.socket):
        self.socket = end
        self.open = True
        self._rest = b""

    def send(self, message: dict[str, Any]) -> None:
        """Send a message. Close the channel if the other end is closed."""
        try:
            self.socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.open = False

    def receive(self, timeout_seconds: float) -> list[dict[str, Any]]:
        """Return the messages that have arrived, after waiting at most `timeout_seconds` for one.

        `open` is False once the other end is closed.
        """
        if not select.select([self.socket], [], [], timeout_seconds)[0]:
            return []
        try:
            raw = self.socket.recv(1 << 16)
        except OSError:
            raw = b""
        self.open = self.open and bool(raw)
        # The last part is a message that has not arrived completely.
        *lines, self._rest = (self._rest + raw).split(b"\n")
        return [json.loads(line) for line in lines]


class Order(NamedTuple):
    """The order to a worker: the cell to train, its submission and its core."""

    submission: str
    """The ledger's name of this start."""
    folder: str
    cell: str
    """The cell, as JSON."""
    core: int | None = None
    """The core on which the worker stays; None: any core."""
    others: tuple[tuple[str, str], ...] = ()
    """Submission and cell, as JSON, of the other cells that the same process trains."""
    options: Mapping[str, object] | None = None
    """`site.options`; see NodeOptions."""
    gpus: tuple[str, ...] = ()
    """The GPUs of this machine that belong to the cell, by nvidia-smi's index."""


# In orch


class ForkServer:
    """The fork server, as seen by orch."""

    def __init__(self, process: "subprocess.Popen[bytes]", channel: Channel, output: IO[bytes]):
        self.process, self.channel, self._output = process, channel, output
        self._used = False

    def start(self, order: Order) -> None:
        """Send the order to start a worker."""
        self._used = True
        self.channel.send({"do": "start", "order": order._asdict()})

    def last_lines(self) -> str:
        """Return the end of the fork server's output, for a message."""
        self._output.seek(0)
        return self._output.read().decode(errors="replace")[-2000:].strip()

    def stop(self) -> None:
        """Let workers write what they have, then end the fork server. Wait for its end."""
        self.channel.send({"do": "stop"})
        # with no worker there is nobody to wait for, and it may be importing for seconds
        deadline = time.monotonic() + (GRACE_SECONDS if self._used else 0)
        while self.channel.open and time.monotonic() < deadline:
            self.channel.receive(0.1)
        self.kill()

    def kill(self) -> None:
        """End the fork server and its workers at once."""
        self.channel.send({"do": "kill"})
        self.channel.socket.close()
        try:
            self.process.wait(timeout=2 if self._used else 0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def fork_server(modules: Iterable[str]) -> Iterator[ForkServer]:
    """Run a fork server that imports these modules. Leaving the context stops its workers.

    It has a session of its own, so that Ctrl-C reaches orch and not its workers. Its output does
    not reach the terminal.
    """
    ours, theirs = socket.socketpair()
    with tempfile.TemporaryFile() as output, ours, theirs:
        module = "orchestrator.launch.fork_server"
        ends = [str(os.getpid()), str(theirs.fileno())]
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *ends],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=[theirs.fileno()],
            # In the environment, because these libraries read the number of threads when they are
            # loaded.
            env={**os.environ, **ONE_THREAD},
        )
        # Only the server may hold its end: a copy here would keep the channel open after its death.
        theirs.close()
        server = ForkServer(process, Channel(ours), output)
        try:
            server.channel.send({"do": "prepare", "modules": sorted(set(modules))})
            yield server
        finally:
            server.stop()


def import_fault(message: str) -> EnvironmentFault:
    """Return the error for a backend's entry module that cannot be imported."""
    absent = re.search(r"No module named '([\w.]+)'", message)
    remedy = (missing(absent[1]) if absent else None) or "`orch doctor` says what is missing"
    return EnvironmentFault(
        f"the trainer cannot be imported: {message}. Nothing was started; {remedy}"
    )


# In the fork server


class ForkedWorker:
    """A worker: its process, and the pipe on which it reports."""

    def __init__(self, pid: int, pipe: socket.socket, submission: str):
        self.pid, self.channel, self.submission = pid, Channel(pipe), submission


class ForkServerLoop:
    """The main loop of the fork server's process."""

    def __init__(self, orch: Channel):
        self.orch = orch
        self.workers: dict[int, ForkedWorker] = {}
        self.closing = False

    def run(self) -> None:
        """Serve until orch is gone, or until orch asks to stop and the last worker has ended."""
        while self.orch.open and not (self.closing and not self.workers):
            pipes = {w.channel.socket: w for w in self.workers.values() if w.channel.open}
            ready = select.select([self.orch.socket, *pipes], [], [], 0.5)[0]
            for message in self.orch.receive(0) if self.orch.socket in ready else ():
                self._obey(message)
            for pipe in ready:
                if pipe in pipes:
                    self._forward(pipes[pipe])
            self._reap()
        # orch is gone or has stopped: no worker may outlive the server.
        self._signal(signal.SIGKILL)

    def _obey(self, message: dict[str, Any]) -> None:
        match message["do"]:
            case "prepare":
                self._prepare(message["modules"])
            case "start":
                self._fork(Order(**message["order"]))
            case "stop":
                self.closing = True
                self._signal(signal.SIGTERM)
            case "kill":
                self.closing = True
                self._signal(signal.SIGKILL)

    def _prepare(self, modules: list[str]) -> None:
        gc.disable()  # what an import makes stays: collecting took a twelfth of importing torch
        for name in modules:
            try:
                import_module(name)
            except Exception as error:
                self.orch.send({"refused": f"{name}: {type(error).__name__}: {error}"})
                self.closing = True
                return
        worker.one_thread()
        provenance.commit()  # of the code that was just imported; workers inherit the answer
        gc.freeze()  # a collection would touch, and so copy, every page that workers share
        gc.enable()
        self.orch.send({"ready": True})

    def _fork(self, order: Order) -> None:
        if self.closing:
            return
        server = os.getpid()
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            processes.die_with(server)
            # a worker must not hold the other ends open: orch reads their closing as deaths
            self.orch.socket.close()
            ours.close()
            for other in self.workers.values():
                other.channel.socket.close()
            run_worker(order, Channel(theirs))
        theirs.close()
        self.workers[pid] = ForkedWorker(pid, ours, order.submission)

    def _forward(self, forked: ForkedWorker) -> None:
        for message in forked.channel.receive(0):
            self.orch.send({"submission": forked.submission, **message})

    def _reap(self) -> None:
        for forked in list(self.workers.values()):
            # a closed pipe means that it is ending, which is worth a moment's wait
            pid, status = os.waitpid(forked.pid, os.WNOHANG if forked.channel.open else 0)
            if pid:
                # Messages of the worker go to orch before `ended`. The worker is gone, so its end
                # closes.
                while forked.channel.open:
                    self._forward(forked)
                forked.channel.socket.close()
                del self.workers[pid]
                code = os.waitstatus_to_exitcode(status)
                self.orch.send({"ended": code, "submission": forked.submission})

    def _signal(self, number: int) -> None:
        for pid in self.workers:
            os.kill(pid, number)


# In a worker


def run_worker(order: Order, report: Channel) -> NoReturn:
    """Carry out one order, report the result, and end the process."""
    stop = worker.StopSignals(together.ASKS_TO_STOP if order.others else worker.STOP_SIGNALS)
    code = 0
    try:
        if order.gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(order.gpus)
            for name in ONE_THREAD:
                os.environ.pop(name, None)
        elif order.core is not None:
            processes.pin(order.core)
        worker.one_thread()
        if order.others:

            def tell(submission: str, **message: object) -> None:
                report.send({**message, "submission": submission})

            cells = ((order.submission, order.cell), *order.others)
            together.train_cells(cells, Path(order.folder), tell, stop)
        else:
            train_cell(order, report, stop)
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
        # Not sys.exit: this process is a fork of the server, whose stack and exit handlers it must
        # not run.
        os._exit(code)


def train_cell(order: Order, report: Channel, stop: worker.StopSignals) -> None:
    """Train the cell if it still needs training and no other process holds its claim."""
    cell = Cell.model_validate_json(order.cell)
    folder = RunFolder(Path(order.folder))
    cell_dir = folder.cell(cell)
    cell_dir.make(cell)
    claim = cell_dir.take_claim()
    if claim is None:
        report.send({"held": True})
        return
    with claim:
        # orch decided without the claim: since then another may have trained or cancelled the cell
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
            return node.run(plan, attempt, cell, order.options or {}, claim)

        worker.redirect(attempt)
        report.send({"started": attempt.number})
        job = {"submission": order.submission, "launcher": "local"}
        record = worker.train(cell, cell_dir, attempt, job, stop, announce, execute)
        # The exit record comes first, because it alone decides. A kill before the next line costs
        # only the line in the ledger.
        attempt.write_exit(record)
        folder.append(
            "ended",
            cell.id,
            submission=order.submission,
            attempt=attempt.number,
            state=record.state,
            failure=record.failure,
        )


def main() -> None:
    """Serve the process and the socket that the command line names."""
    processes.die_with(int(sys.argv[1]))
    ForkServerLoop(Channel(socket.socket(fileno=int(sys.argv[2])))).run()


if __name__ == "__main__":
    main()
