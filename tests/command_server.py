"""A process that has imported what commands import, and forks for each command.

Half a second of a command's processor time is imports, two where it opens MLflow, four more where
it trains and scores. A command here is still a process of its own, with its own folder,
environment, output and exit code. So are the two programs of orch that a command starts again and
again (`AGAIN`): they are forks of the command.

    python command_server.py SOCKET [PROGRAM [MODULE ...]]

All processes of one test run share a server: it ends when the last of them has closed its
connection. On a connection, a line of JSON asks for a command; the answer is its exit code.
PROGRAM, a Python file, is run instead of `python -m orchestrator`; it or what it starts imports
each MODULE.
"""

import atexit
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from orchestrator.cli import COMMANDS
from orchestrator.evaluate.run import OFFLINE, ON_CORES, QUIET
from orchestrator.launch.fork_server import ONE_THREAD
from orchestrator.report.laboratory import laboratory_data

MODULE_NAMES = {"import": "import_"}
ALWAYS = ("hydra", "numpy", "scipy.special")
MLFLOW = ("mlflow.tracking", "mlflow.store.tracking.sqlalchemy_store")
DRAWING = ("vl_convert",)
TRAINING = ("torch", "backends.micro.train", "orchestrator.launch.together")
SCORING = (*TRAINING, "orchestrator.evaluate.harness")
ALSO = {
    "run": (*SCORING, *MLFLOW, *DRAWING),
    "eval": SCORING,
    "report": (*MLFLOW, *DRAWING),
}
"""Command -> heavy libraries that it, or a program of `AGAIN` that it starts, imports."""
SCORING_SETTINGS = {**QUIET, **ON_CORES, **OFFLINE}
"""The environment of the process that scores; the libraries of `SCORING` read it when they are
imported."""
AGAIN: dict[str, dict[str, str]] = {
    "orchestrator.launch.fork_server": ONE_THREAD,
    "orchestrator.evaluate.worker": SCORING_SETTINGS,
}
"""Programs of orch that a command starts -> what their environment must hold, so that libraries
were imported with it. With less, Python is started anew."""
BY_PROGRAM = ("orchestrator.launch.local", "orchestrator.launch.together")
"""What a PROGRAM imports."""
start_anew: Callable[..., int] = subprocess._fork_exec  # type: ignore[attr-defined]  # not in typeshed
"""CPython's own, below every Popen: arguments, programs, ..., descriptors, ..., session, ..."""


class Commands:
    """The commands that run, each with the connection that asked for it."""

    def __init__(self, listener: socket.socket, program: str) -> None:
        self.program = program
        self.selector = selectors.DefaultSelector()
        self.listener = listener
        self.connections: set[socket.socket] = set()
        self.running: dict[int, socket.socket] = {}
        self.woken, wakes = socket.socketpair()
        for end in (self.woken, wakes):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes.fileno())
        self.ends = (self.woken, wakes, listener)
        for end in (self.woken, listener):
            self.selector.register(end, selectors.EVENT_READ)

    def serve(self) -> None:
        """Return when every test process that came has gone."""
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is self.listener:
                    connection, _ = self.listener.accept()
                    self.connections.add(connection)
                    self.selector.register(connection, selectors.EVENT_READ)
                elif key.fileobj is self.woken:
                    self.woken.recv(1024)
                elif isinstance(key.fileobj, socket.socket):
                    self._read(key.fileobj)
            self._answer()
            if not self.connections:
                return

    def _read(self, connection: socket.socket) -> None:
        line = b""
        while not line.endswith(b"\n"):
            part = connection.recv(1 << 20)
            if not part:
                self.selector.unregister(connection)
                self.connections.discard(connection)
                connection.close()
                return
            line += part
        request = json.loads(line)
        modules = ALSO.get("".join(request["arguments"][:1]), ())
        if "SLURM_CONF" in request["environment"]:  # jobs train and score, each in a new Python
            modules = tuple(name for name in modules if name not in SCORING)
        import_with_settings(modules)
        child = os.fork()
        if not child:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self.selector.close()
            for end in (*self.ends, *self.connections):
                end.close()
            become(request, self.program)
        self.running[child] = connection

    def _answer(self) -> None:
        while self.running:
            child, status = os.waitpid(-1, os.WNOHANG)
            if not child:
                return
            connection = self.running.pop(child)
            with suppress(OSError):  # the test process has gone
                connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def import_with_settings(names: Sequence[str]) -> None:
    """Import what a command imports in its course, with the environment that its programs have."""
    kept = dict(os.environ)
    os.environ.update(SCORING_SETTINGS)
    for name in names:
        import_module(name)
    if DRAWING[0] in sys.modules:
        laboratory_data()
    os.environ.clear()
    os.environ.update(kept)
    gc.freeze()


def fork_exec(*call: Any) -> int:
    """Fork this process where `subprocess` would start a program of `AGAIN` in a new Python."""
    argv = [os.fsdecode(word) for word in call[0]]
    environment = dict(os.environ) if call[5] is None else variables(call[5])
    known = argv[:3] == [sys.executable, "-P", "-m"] and argv[3] in AGAIN
    if not known or not AGAIN[argv[3]].items() <= environment.items():
        return start_anew(*call)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    child = os.fork()
    if not child:
        be_module(
            argv[3:],
            environment,
            (call[6], call[9], call[11]),
            set(call[3]) - {call[13]},
            call[15],
        )
    return child


def variables(listed: list[bytes]) -> dict[str, str]:
    pairs = (os.fsdecode(line).partition("=") for line in listed)
    return {name: value for name, _, value in pairs}


def be_module(
    argv: list[str],
    environment: dict[str, str],
    ends: tuple[int, int, int],
    passed: set[int],
    own_session: bool,
) -> NoReturn:
    """Be `python -P -m ARGV` with these descriptors as input, output and errors."""
    if own_session:
        os.setsid()
    for number, end in enumerate(ends):
        if end != -1:
            os.dup2(end, number)
    for entry in os.listdir("/proc/self/fd"):  # noqa: PTH208  (names alone)
        if int(entry) > 2 and int(entry) not in passed:
            with suppress(OSError):
                os.close(int(entry))
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  (these have no path)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    sys.path.pop(0)
    sys.argv = argv
    sys.modules.pop(argv[0], None)  # as with `-m`: it runs as __main__ alone
    subprocess._fork_exec = start_anew  # type: ignore[attr-defined]  # not in typeshed
    end_with(partial(runpy.run_module, argv[0], run_name="__main__", alter_sys=True))


def become(request: dict[str, Any], program: str) -> NoReturn:
    """Be the program with the arguments, in the folder, with the environment and the files."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for number, name in ((1, "stdout"), (2, "stderr")):
        sink = os.open(request[name], os.O_WRONLY | os.O_APPEND)
        os.dup2(sink, number)
        os.close(sink)
    subprocess._fork_exec = fork_exec  # type: ignore[attr-defined]  # not in typeshed
    sys.argv = [program or "orch", *request["arguments"]]
    if program:
        sys.path[0] = str(Path(program).parent)
        end_with(partial(runpy.run_path, program, run_name="__main__"))
    sys.path[0] = request["folder"]
    end_with(partial(runpy.run_module, "orchestrator", run_name="__main__", alter_sys=True))


def end_with(program: Callable[[], object]) -> NoReturn:
    """Run a program to its end, and end as Python does, but unload no module: that takes longer
    than most commands."""
    code: object = 1
    try:
        program()
        code = 0
    except SystemExit as ended:
        code = ended.code or 0
        if not isinstance(code, int):
            sys.stderr.write(f"{code}\n")
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]  # what Python calls first
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code if isinstance(code, int) else 1)


def main() -> None:
    """Answer requests until every test process has gone."""
    address, program = sys.argv[1], "".join(sys.argv[2:3])
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # it would start threads
    commands = (f"orchestrator.cli.{MODULE_NAMES.get(name, name)}" for name in COMMANDS)
    for module in BY_PROGRAM if program else (*commands, *ALWAYS):
        import_module(module)
    import_with_settings(sys.argv[3:])
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{address}.new")
        listener.listen(64)
        Path(f"{address}.new").rename(address)  # it listens: who sees the name can connect
        Commands(listener, program).serve()
    for path in (address, f"{address}.lock"):
        Path(path).unlink(missing_ok=True)
    with suppress(OSError):  # another server is in it
        Path(address).parent.rmdir()


if __name__ == "__main__":
    main()
