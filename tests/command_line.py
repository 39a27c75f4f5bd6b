"""The real command line, in a process of its own. Shared by tests of commands and documents."""

import fcntl
import hashlib
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
SECONDS = 1800
READ_AT_IMPORT = (
    *("PYTHON", "LD_", "LC_", "LANG", "HOME", "XDG_", "TMP", "TEMP"),
    *("HF_", "OMP_", "MKL_", "OPENBLAS_", "MPL"),
)
"""Beginnings of variables that Python or a library reads when it is imported, or only once."""


def read_at_import(environment: dict[str, str]) -> dict[str, str]:
    """Return the variables that a command shares with its server; an empty one is none."""
    return {k: v for k, v in environment.items() if k.startswith(READ_AT_IMPORT) and v}


def own_variables() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW", "ORCH"))}


class Server:
    """A command_server.py, which all test processes of a run share.

    The first of them that calls a command starts it. It ends when they have ended.

    environment: what it imports with.
    program: a file that is run instead of orch.
    modules: what the program, or what it starts, imports.
    """

    def __init__(
        self, environment: dict[str, str], program: Path | None = None, *modules: str
    ) -> None:
        self._imported_with = read_at_import(environment)
        self._environment = environment
        self._words = [str(program), *modules] if program else []
        self._held: socket.socket | None = None
        self._turn = threading.Lock()

    def call(
        self, folder: Path, arguments: list[str], environment: dict[str, str]
    ) -> "subprocess.CompletedProcess[str] | None":
        """Return what the command did; None if it needs other imports."""
        if read_at_import(environment) != self._imported_with:
            return None
        address = self._address()
        with self._turn:
            if self._held is None:
                self._held = self._connected(address)
        with (
            tempfile.NamedTemporaryFile("r") as out,
            tempfile.NamedTemporaryFile("r") as err,
            socket.socket(socket.AF_UNIX) as connection,
        ):
            connection.connect(str(address))
            connection.settimeout(SECONDS)
            request = {
                "folder": str(folder),
                "arguments": arguments,
                "environment": environment,
                "stdout": out.name,
                "stderr": err.name,
            }
            connection.sendall(json.dumps(request).encode() + b"\n")
            answer = connection.makefile().readline()
            if not answer:
                raise ChildProcessError(f"orch {' '.join(arguments)}: the server has ended")
            return subprocess.CompletedProcess(arguments, int(answer), out.read(), err.read())

    def leave(self) -> None:
        """Need the server no more. The end of this process does the same."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def _address(self) -> Path:
        """Return the place of the socket, which is the same in all processes of a test run."""
        run = os.environ.get("PYTEST_XDIST_TESTRUNUID", _OWN_RUN)
        folder = Path(tempfile.gettempdir(), f"orch-tests-{run}")
        folder.mkdir(mode=0o700, exist_ok=True)
        same = json.dumps([self._words, sorted(self._imported_with.items())])
        return folder / hashlib.sha256(same.encode()).hexdigest()[:16]

    def _connected(self, address: Path) -> socket.socket:
        """Return a connection that holds the server, which is started if nobody holds one."""
        with Path(f"{address}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(str(address))
            except OSError:
                address.unlink(missing_ok=True)
                self._start(address)
                connection.connect(str(address))
        return connection

    def _start(self, address: Path) -> None:
        server = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("command_server.py"), address, *self._words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd=ROOT,
            env=self._environment,
        )
        while not address.exists():
            if server.poll() is not None:
                raise ChildProcessError(f"command_server.py ended with {server.returncode}")
            time.sleep(0.02)


_OWN_RUN = secrets.token_hex(8)
_server = Server(own_variables())


def orch(folder: Path, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """`orch ARGUMENTS` in a folder; never a terminal, never a tracking server of the machine's."""
    variables = own_variables() | environment
    words = list(map(str, arguments))
    done = _server.call(folder, words, variables)
    if done is not None:
        return done
    return subprocess.run(
        [sys.executable, "-m", "orchestrator", *words],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=SECONDS,
    )
