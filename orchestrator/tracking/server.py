"""An `mlflow server` of our own over a store, for as long as the dashboard is open.

MLflow does not authenticate and cannot be made read-only. So the server listens on no port: it
listens on a socket in a folder that only this user can enter, and a browser reaches it through an
SSH tunnel.
"""

import getpass
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

from orchestrator.errors import EnvironmentFault
from orchestrator.tracking.store import Store

TUNNEL_PORT = 8600
"""The port on the reader's machine that the printed tunnel opens."""
READY_SECONDS = 240.0
"""Seconds until the server counts as failed: its imports take half a minute on a quiet machine."""
LONGEST_FOLDER = 60
"""Characters of the longest folder. With its own folder and name, a socket's path must stay below
104 (macOS)."""
_END_SECONDS = 10.0
_SETTINGS = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # five processes that a reader has no use for
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
_UNTIL_WE_END = '("$@"; kill 0) & read -r _; kill 0'
"""A shell that ends the server, with its workers, when its standard input closes: also after our
kill -9. It ends itself with a server that failed."""


@dataclass(frozen=True)
class LocalServer:
    """The server that `serving` started."""

    socket: Path
    process: "subprocess.Popen[bytes]"
    log: Path

    def tunnel(self, page_port: int) -> str:
        """Return the command that brings MLflow and the page to a reader's own machine."""
        ports = f"-L {page_port}:127.0.0.1:{page_port} -L {TUNNEL_PORT}:{self.socket}"
        return f"ssh -N {ports} {getpass.getuser()}@{socket.getfqdn()}"

    def wait(self, seconds: float = READY_SECONDS) -> None:
        """Wait until the server listens. Raise EnvironmentFault if it does not."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < deadline:
            with suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
                probe.connect(str(self.socket))
                return
            time.sleep(0.5)
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        last_words = " ".join(text.split())[-400:] or "it said nothing"
        raise EnvironmentFault(f"mlflow server did not start within {seconds:g} s: {last_words}")


@contextmanager
def serving(store: Store) -> Iterator[LocalServer]:
    """Start a server over a store that is no server itself, and end it afterwards."""
    environment = {**_SETTINGS, **os.environ}
    environment["MLFLOW_BACKEND_STORE_URI"] = store.uri  # it may hold a password: not in argv
    environment.pop("MLFLOW_TRACKING_URI", None)
    short = None if len(gettempdir()) < LONGEST_FOLDER else "/tmp"  # noqa: S108  (a private folder in it)
    with TemporaryDirectory(prefix="orch-mlflow-", dir=short) as folder:
        listens, log = Path(folder, "socket"), Path(folder, "log")
        argv = ["sh", "-c", _UNTIL_WE_END, "sh", sys.executable, "-m", "mlflow", "server"]
        argv += ["--workers", "1", "--uvicorn-opts", f"--uds {shlex.quote(str(listens))}"]
        if store.artifacts is not None:  # their addresses in the default store name no folder
            argv += ["--artifacts-destination", str(store.artifacts.parent.absolute())]
        with log.open("wb") as output:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )
        try:
            yield LocalServer(listens, process, log)
        finally:
            if process.stdin is not None:
                process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
            with suppress(ProcessLookupError):  # the group, if a worker of it is left
                os.killpg(process.pid, signal.SIGKILL)
