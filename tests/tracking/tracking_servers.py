"""Real servers on this machine for the tests of the mirror: MLflow's own, and PostgreSQL."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psycopg
from lifeline import first_page, free_port, held, kill, let_go

USER = "orch"
NOBODY = "postgres"
"""PostgreSQL refuses root; Debian's package has made this user."""


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
        first_page(f"{self.uri}/health", self.process)

    def kill(self) -> None:
        kill(self.process)


def programs() -> Path | None:
    """Return the folder of initdb and postgres, which Debian keeps off the PATH; None without."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    on_path = shutil.which("initdb")
    return folders[-1] if folders else Path(on_path).parent if on_path else None


class Postgres:
    """A server of Debian's package. Its user must be able to enter the folder `root`."""

    def __init__(self, root: Path, bin_: Path):
        data, self.port = root / "data", free_port()
        other: tuple[str, ...] = ()
        if os.geteuid() == 0:
            shutil.chown(root, NOBODY, NOBODY)
            other = ("setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups")
        options = ("-U", USER, "-A", "trust", "--no-sync", "--locale=C", "-E", "UTF8")
        subprocess.run(
            [*other, bin_ / "initdb", "-D", data, *options],
            check=True,
            capture_output=True,
            cwd=root,
        )
        where = ("-D", str(data), "-k", str(root), "-p", str(self.port))
        settings = ("-c", "listen_addresses=127.0.0.1", "-c", "fsync=off")
        with (root / "log").open("ab") as log:
            argv = [*other, str(bin_ / "postgres"), *where, *settings]
            self.process = held(argv, cwd=root, stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while True:
            try:
                self._ask("SELECT 1")
                return
            except psycopg.OperationalError:
                assert self.process.poll() is None, (root / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.1)

    def database(self, name: str, like: str = "template1") -> str:
        """Make a database, a copy of another; return its URI."""
        self._ask(f"CREATE DATABASE {name} TEMPLATE {like}")
        return f"postgresql+psycopg://{USER}@127.0.0.1:{self.port}/{name}"

    def stop(self) -> None:
        let_go(self.process)

    def _ask(self, statement: str) -> None:
        address = f"host=127.0.0.1 port={self.port} user={USER} dbname=postgres"
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(statement.encode())
