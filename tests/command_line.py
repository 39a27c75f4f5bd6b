"""The real command line, in a process of its own. Shared by tests of commands and documents."""

import atexit
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).parents[1]
SECONDS = 1800
READ_AT_IMPORT = (
    *("PYTHON", "LD_", "LC_", "LANG", "HOME", "XDG_", "TMP", "TEMP"),
    *("HF_", "OMP_", "MKL_", "OPENBLAS_", "MPL"),
)
"""Beginnings of variables that Python or a library reads when it is imported, or only once."""


class Server:
    """command_server.py, started by the first command and ended with this process."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._imported_with: dict[str, str] = {}

    def call(
        self, folder: Path, arguments: list[str], environment: dict[str, str]
    ) -> "subprocess.CompletedProcess[str] | None":
        """Return what the command did; None if another is running, or it needs other imports."""
        if not self._turn.acquire(blocking=False):
            return None
        try:
            if self._process is None or self._process.poll() is not None:
                self._start(environment)
            if read_at_import(environment) != self._imported_with:
                return None
            return self._ask(folder, arguments, environment)
        finally:
            self._turn.release()

    def _start(self, environment: dict[str, str]) -> None:
        self._imported_with = read_at_import(environment)
        self._process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("command_server.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        atexit.register(self._process.stdin.close)  # type: ignore[union-attr]  # a pipe, as asked

    def _ask(
        self, folder: Path, arguments: list[str], environment: dict[str, str]
    ) -> "subprocess.CompletedProcess[str]":
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
            request = {
                "folder": str(folder),
                "arguments": arguments,
                "environment": environment,
                "stdout": out.name,
                "stderr": err.name,
            }
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            answered, _, _ = select.select([process.stdout], [], [], SECONDS)
            line = process.stdout.readline() if answered else ""
            if not line:
                process.kill()
                raise TimeoutError(f"orch {' '.join(arguments)}: no answer")
            return subprocess.CompletedProcess(arguments, int(line), out.read(), err.read())


def read_at_import(environment: dict[str, str]) -> dict[str, str]:
    return {k: v for k, v in environment.items() if k.startswith(READ_AT_IMPORT)}


_server = Server()


def orch(folder: Path, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """`orch ARGUMENTS` in a folder; never a terminal, never a tracking server of the machine's."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW", "ORCH"))}
    words = list(map(str, arguments))
    done = _server.call(folder, words, inherited | environment)
    if done is not None:
        return done
    return subprocess.run(
        [sys.executable, "-m", "orchestrator", *words],
        cwd=folder,
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=SECONDS,
    )
