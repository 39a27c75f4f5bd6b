"""An `mlflow server` of our own over a store, on this machine only, for as long as it is looked at.

It listens on 127.0.0.1 whatever else is asked of the dashboard: MLflow has no notion of reading
only. It ends with us, also when we are killed (keeper.py).
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from orchestrator.errors import EnvironmentFault
from orchestrator.tracking import keeper
from orchestrator.tracking.store import Store

READY_SECONDS = 240.0
"""It imports for half a minute on a quiet machine, and for more than one on a busy one."""

FIRST_PORT = 8600
_END_SECONDS = 15.0
_SETTINGS = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # five processes that a reader has no use for
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


class Server:
    """A tracking server for people to look at. `address` has no slash at its end."""

    def __init__(self, address: str, keeper: "subprocess.Popen[bytes] | None", log: Path | None):
        self.address = address
        self._keeper, self._log = keeper, log

    @property
    def is_ours(self) -> bool:
        """Return True if orch started the server."""
        return self._keeper is not None

    def is_up(self) -> bool:
        """Return True if the server answers. Raise EnvironmentFault if orch's own has ended."""
        if self._keeper is not None and self._keeper.poll() is not None:
            raise EnvironmentFault(f"mlflow server ended before it was asked to: {self._log_end()}")
        try:
            with urllib.request.urlopen(f"{self.address}/health", timeout=5):  # noqa: S310  (http or https: store_of looked)
                return True
        except urllib.error.HTTPError:
            return True  # it answers, if only to say that it wants a password
        except OSError:
            return False

    def wait(self, seconds: float = READY_SECONDS) -> None:
        """Wait until it answers. Raise EnvironmentFault if it does not."""
        deadline = time.monotonic() + seconds
        while not self.is_up():
            if time.monotonic() > deadline:
                raise EnvironmentFault(f"MLflow at {self.address} did not answer in {seconds:g} s")
            time.sleep(0.5)

    def _log_end(self) -> str:
        text = self._log.read_text(errors="replace") if self._log and self._log.exists() else ""
        return " ".join(text.split())[-400:] or "it said nothing"


@contextmanager
def serving(store: Store) -> Iterator[Server]:
    """Yield the server of a store: the one it is, else one started for it and ended afterwards."""
    if store.is_server:
        yield Server(store.address, None, None)
        return
    port = _free_port()
    argv = [
        sys.executable,
        keeper.__file__,
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--workers",
        "1",
    ]
    environment = {**_SETTINGS, **os.environ}
    environment["MLFLOW_BACKEND_STORE_URI"] = store.uri  # it may hold a password: not in argv
    environment.pop("MLFLOW_TRACKING_URI", None)
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
            yield Server(f"http://127.0.0.1:{port}", process, log)
        finally:
            if process.stdin is not None:
                process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)


def experiment_id(server: Server, store: Store, name: str) -> str | None:
    """Return the id of an experiment; None if the server, which is up, has none of this name."""
    url = f"{server.address}/api/2.0/mlflow/experiments/get-by-name?experiment_name={quote(name)}"
    request = urllib.request.Request(url, headers=_authorization(store))  # noqa: S310  (http or https: store_of looked)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310  (http or https: store_of looked)
            plain: dict[str, Any] = json.load(answer)
        return str(plain["experiment"]["experiment_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _authorization(store: Store) -> dict[str, str]:
    """Return the header for the user and password in the address, or in MLflow's variables."""
    user, _, password = urlsplit(store.uri).netloc.rpartition("@")[0].partition(":")
    user = unquote(user) or os.environ.get("MLFLOW_TRACKING_USERNAME", "")
    password = unquote(password) or os.environ.get("MLFLOW_TRACKING_PASSWORD", "")
    if token := os.environ.get("MLFLOW_TRACKING_TOKEN", ""):
        return {"Authorization": f"Bearer {token}"}
    if not user:
        return {}
    return {"Authorization": "Basic " + b64encode(f"{user}:{password}".encode()).decode()}


def _free_port() -> int:
    """Return the first free port from FIRST_PORT on, so that an ssh tunnel can name it."""
    for port in range(FIRST_PORT, FIRST_PORT + 100):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise EnvironmentFault(f"no port from {FIRST_PORT} to {FIRST_PORT + 99} is free for MLflow")
