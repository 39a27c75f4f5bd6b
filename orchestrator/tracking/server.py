"""An `mlflow server` of our own over a store, for as long as the dashboard is open.

MLflow does not authenticate and cannot be made read-only. So the server listens on no port: it
listens on a socket in a folder that only this user can enter, whatever the dashboard's options are
(docs/decisions/044). It ends with us, also when we are killed (keeper.py).
"""

import http.client
import json
import os
import shlex
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from orchestrator.errors import EnvironmentFault
from orchestrator.tracking import keeper
from orchestrator.tracking.store import Store

READY_SECONDS = 240.0
"""Seconds until the server counts as failed. Its imports take half a minute on a quiet machine, and
more than a minute on a busy one."""

LONGEST_FOLDER = 60
"""Characters of the longest folder. With its own folder and name, a socket's path must stay below
104 (macOS)."""
_END_SECONDS = 15.0
_SETTINGS = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # five processes that a reader has no use for
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket of this machine."""

    def __init__(self, path: Path, timeout: float):
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket. Raise OSError if nothing listens on it."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Server:
    """A tracking server for people.

    `address`: the address of a server that somebody else runs, without a slash at its end.
    `socket`: the socket of a server that orch started.
    """

    def __init__(
        self,
        address: str,
        socket: Path | None = None,
        keeper: "subprocess.Popen[bytes] | None" = None,
        log: Path | None = None,
    ):
        self.address, self.socket = address, socket
        self._keeper, self._log = keeper, log

    def is_up(self) -> bool:
        """Return True if the server answers. Raise EnvironmentFault if orch's server ended."""
        if self._keeper is not None and self._keeper.poll() is not None:
            raise EnvironmentFault(f"mlflow server ended before it was asked to: {self._log_end()}")
        try:
            self.get("/health", {}, 5)
        except urllib.error.HTTPError:
            return True  # it is up, even if it only requires a password
        except (OSError, http.client.HTTPException):
            return False
        return True

    def get(self, path: str, headers: Mapping[str, str], seconds: float) -> bytes:
        """Return the server's answer. Raise OSError or HTTPException if it does not answer."""
        if self.socket is None:
            request = urllib.request.Request(f"{self.address}{path}", headers=dict(headers))  # noqa: S310  (http or https: store_of looked)
            with urllib.request.urlopen(request, timeout=seconds) as answer:  # noqa: S310  (the same)
                return bytes(answer.read())
        connection = UnixConnection(self.socket, seconds)
        try:
            connection.request("GET", path, headers=dict(headers))
            return connection.getresponse().read()
        finally:
            connection.close()

    def wait(self, seconds: float = READY_SECONDS) -> None:
        """Wait until the server answers. Raise EnvironmentFault if it does not."""
        deadline = time.monotonic() + seconds
        while not self.is_up():
            if time.monotonic() > deadline:
                where = f" at {self.address}" if self.address else ""
                raise EnvironmentFault(f"MLflow{where} did not answer in {seconds:g} s")
            time.sleep(0.5)

    def _log_end(self) -> str:
        text = self._log.read_text(errors="replace") if self._log and self._log.exists() else ""
        return " ".join(text.split())[-400:] or "it said nothing"


@contextmanager
def serving(store: Store) -> Iterator[Server]:
    """Yield the server of a store. If the store is no server, start one and end it afterwards."""
    if store.is_server:
        yield Server(store.address)
        return
    environment = {**_SETTINGS, **os.environ}
    environment["MLFLOW_BACKEND_STORE_URI"] = store.uri  # it may hold a password: not in argv
    environment.pop("MLFLOW_TRACKING_URI", None)
    with TemporaryDirectory(prefix="orch-mlflow-", dir=_short_folder()) as folder:
        listens, log = Path(folder, "socket"), Path(folder, "log")
        argv = [
            *(sys.executable, keeper.__file__, sys.executable, "-m", "mlflow", "server"),
            *("--workers", "1", "--uvicorn-opts", f"--uds {shlex.quote(str(listens))}"),
        ]
        if store.artifacts is not None:
            argv += ["--artifacts-destination", str(store.artifacts.parent)]
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
            yield Server("", listens, process, log)
        finally:
            # The keeper ends the server when its standard input closes.
            if process.stdin is not None:
                process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)


def experiment_id(server: Server, store: Store, name: str) -> str | None:
    """Return the id of an experiment; None if the server has no experiment of this name."""
    path = f"/api/2.0/mlflow/experiments/get-by-name?experiment_name={quote(name)}"
    try:
        plain: dict[str, Any] = json.loads(server.get(path, _authorization(store), 20))
        return str(plain["experiment"]["experiment_id"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
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


def _short_folder() -> str | None:
    """Return a folder for the socket with a short path, as the kernel requires; None: the usual
    folder."""
    return None if len(gettempdir()) < LONGEST_FOLDER else "/tmp"  # noqa: S108  (a private folder in it)
