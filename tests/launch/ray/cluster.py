"""A real Ray on this machine: a head with its job server.

A raylet gives its agent 15 s to write the ports on which it listens, and `ray start` gives the
raylet 30 s to register. On a busy machine the agent alone takes longer to import. The ports are
therefore given, and this module writes the agent's port files before the agent can.
"""

import json
import os
import secrets
import shutil
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.cluster.daemons import free_ports
from tests.launch.kit import descendants

RELEASE = os.environ.get("ORCH_TEST_RAY_RELEASE") or "2.60.0"
_TRIES = 3
_START_SECONDS = 180.0


class Node:
    """One `ray start --block`, with all its processes in a session of their own."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path):
        self.process, self.log = process, log

    def kill(self) -> None:
        """Kill everything that this node started, as if its machine had lost its power."""
        for pid in [self.process.pid, *descendants(self.process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(30)


class RayCluster:
    """A Ray in a folder. `base` is short: sockets lie in it."""

    def __init__(self, python: Path, base: Path):
        self.python, self.base = python, base
        self.port, self.dashboard = _ports(2)
        self.token = secrets.token_hex(16)
        self.head: Node | None = None

    @property
    def address(self) -> str:
        """The job server's."""
        return f"http://127.0.0.1:{self.dashboard}"

    def start(self, *, cpus: int = 2, **env: str) -> None:
        """Start the head, and wait until its job server takes jobs."""
        words = ["--head", f"--port={self.port}", f"--dashboard-port={self.dashboard}"]
        words += ["--dashboard-host=127.0.0.1", "--include-dashboard=true", "--no-monitor"]
        for left in reversed(range(_TRIES)):
            self.head = self._node(words, cpus, env)
            if self._answers(self.head, "/api/jobs/"):
                return
            log = self.head.log.read_text(errors="replace")[-1500:]
            self.head.kill()
            if not left:
                raise TimeoutError(f"Ray did not start: {log}")
        assert self.head is not None

    def _node(self, words: list[str], cpus: int, env: Mapping[str, str]) -> Node:
        listen, grpc, metrics, runtime = _ports(4)
        temp = self.base / "head"
        shutil.rmtree(temp, ignore_errors=True)
        argv = [
            str(self.python.with_name("ray")),
            "start",
            *words,
            "--node-ip-address=127.0.0.1",
            f"--num-cpus={cpus}",
            "--num-gpus=0",
            f"--temp-dir={temp}",
            "--object-store-memory=80000000",
            "--min-worker-port=0",
            "--max-worker-port=0",
            f"--dashboard-agent-listen-port={listen}",
            f"--dashboard-agent-grpc-port={grpc}",
            f"--metrics-export-port={metrics}",
            f"--runtime-env-agent-port={runtime}",
            "--include-log-monitor=false",
            "--disable-usage-stats",
            "--block",
        ]
        patient = {
            "RAY_agent_register_timeout_ms": "180000",
            "RAY_worker_register_timeout_seconds": "180",
            "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": "180",
            "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "180",
            "RAY_prestart_worker_first_driver": "0",  # a node may declare more CPUs than there are
            "RAY_ADDRESS": "",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
        }
        self.base.mkdir(parents=True, exist_ok=True)
        log = self.base / "head.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                argv,
                cwd=self.base,
                env={**os.environ, **patient, **env},
                stdout=file,
                stderr=file,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        ports = {
            "dashboard_agent_listen_port": listen,
            "metrics_agent_port": grpc,
            "metrics_export_port": metrics,
            "runtime_env_agent_port": runtime,
        }
        threading.Thread(target=_write_ports, args=(process, temp, ports), daemon=True).start()
        return Node(process, log)

    def _answers(self, node: Node, path: str) -> bool:
        """Whether the job server takes jobs before the node ends."""
        deadline = time.monotonic() + _START_SECONDS
        while node.process.poll() is None and time.monotonic() < deadline:
            try:
                probe = f"orch-probe-{time.time_ns()}"
                self.ask("POST", path, {"entrypoint": "true", "submission_id": probe})
                return True
            except (OSError, ValueError) as error:
                if isinstance(error, urllib.error.HTTPError) and error.code in (401, 403):
                    raise AssertionError("the Ray does not take its own token") from error
            time.sleep(0.5)
        return False

    def ask(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.token}"}
        request = urllib.request.Request(  # noqa: S310  (the address is this machine's)
            f"{self.address}{path}", data, headers, method=method
        )
        with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310  (likewise)
            return json.loads(answer.read())

    def jobs(self) -> list[dict[str, Any]]:
        """The jobs of orch that the server knows."""
        listed = self.ask("GET", "/api/jobs/")
        return [j for j in listed if not str(j["submission_id"]).startswith(("orch-probe", "None"))]

    def stop(self) -> None:
        if self.head is not None:
            self.head.kill()
        shutil.rmtree(self.base, ignore_errors=True)


def _ports(count: int) -> range:
    first = free_ports(count)
    return range(first, first + count)


def _write_ports(process: "subprocess.Popen[bytes]", temp: Path, ports: Mapping[str, int]) -> None:
    """Write the files that a raylet waits for, once its session's folder is there."""
    while process.poll() is None:
        time.sleep(0.05)
        for session in temp.glob("session_2*"):
            for log in [*session.glob("gcs_server_port_*"), *session.glob("logs/raylet.out")]:
                node = _node_id(log)
                if node:
                    for name, port in ports.items():
                        path = session / f"{name}_{node}"
                        if not path.exists():
                            path.write_text(str(port))
                    return


def _node_id(path: Path) -> str:
    if path.name.startswith("gcs_server_port_"):
        return path.name.rpartition("_")[2]
    _, _, rest = path.read_text(errors="replace").partition("node_id=")
    return rest.split()[0] if rest else ""
