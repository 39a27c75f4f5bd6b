"""A tracking server of MLflow's own on this machine."""

import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from lifeline import free_port, held, kill


class Server:
    """mlflow server over one database; it can be killed and started again."""

    def __init__(self, root: Path, database: str, artifacts: str):
        self.root, self.database, self.artifacts = root, database, artifacts
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        argv = [
            sys.executable,
            "-m",
            "mlflow",
            "server",
            "--host",
            "127.0.0.1",
            "--workers",
            "1",
            "--port",
            str(self.port),
            "--backend-store-uri",
            self.database,
            "--artifacts-destination",
            self.artifacts,
        ]
        quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        with (self.root / "log").open("ab") as log:
            self.process = held(argv, stdout=log, stderr=log, env={**os.environ, **quiet})
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"{self.uri}/health", timeout=2):  # noqa: S310  (our own server)
                    return
            except OSError:
                assert self.process.poll() is None, (self.root / "log").read_text()
                time.sleep(0.2)
        raise AssertionError("the server did not come up: " + (self.root / "log").read_text())

    def kill(self) -> None:
        kill(self.process)
