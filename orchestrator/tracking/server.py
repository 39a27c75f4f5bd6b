"""An `mlflow server` of our own over a store, for as long as `orch dashboard` runs."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from orchestrator.errors import EnvironmentFault
from orchestrator.tracking.store import Store

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

    address: str
    store: Store
    process: "subprocess.Popen[bytes]"
    log: Path

    def wait(self) -> None:
        """Raise EnvironmentFault with the server's last words when it has ended."""
        self.process.wait()
        words = " ".join(self.log.read_text(errors="replace").split())[-400:] or "it said nothing"
        raise EnvironmentFault(f"mlflow server ended: {self.store.hide(words)}")


@contextmanager
def serving(store: Store) -> Iterator[LocalServer]:
    """Start a server of this machine over a store that is no server itself; end it afterwards."""
    environment = {**_SETTINGS, **os.environ}
    environment["MLFLOW_BACKEND_STORE_URI"] = store.uri  # it may hold a password: not in argv
    environment.pop("MLFLOW_TRACKING_URI", None)
    port = str(_free_port())
    argv = ["sh", "-c", _UNTIL_WE_END, "sh", sys.executable, "-m", "mlflow", "server"]
    argv += ["--workers", "1", "--host", "127.0.0.1", "--port", port]
    if store.artifacts is not None:  # their addresses in the default store name no folder
        argv += ["--artifacts-destination", str(store.artifacts.parent.absolute())]
    with TemporaryDirectory(prefix="orch-mlflow-") as folder:
        log = Path(folder, "log")
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
            yield LocalServer(f"http://127.0.0.1:{port}/", store, process, log)
        finally:
            if process.stdin is not None:
                process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
            with suppress(ProcessLookupError):  # the group, if a worker of it is left
                os.killpg(process.pid, signal.SIGKILL)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])
