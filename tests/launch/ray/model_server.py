"""A model of Ray's job server: what orch asks of it, in memory, without any Ray.

Held against the real one by test_on_a_ray.py: the same refusal of an id that it has, and the same
acceptance once it has forgotten.
"""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


class ModelServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.jobs: dict[str, dict[str, Any]] = {}
        self.headers: list[dict[str, str]] = []
        """Of each question, in the order they came."""
        self.always: tuple[int, str, dict[str, str]] | None = None
        """Status, text and headers of the one answer that it gives to every question."""
        self.without_agent = 0
        """The number of jobs to refuse, as a head does whose agent is still starting."""
        self.answers_wrongly = False
        """True: take jobs, and answer with an error all the same."""
        self.totals: dict[str, float] = {"CPU": 8.0}

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def forget(self) -> None:
        """As a head that is started again without its state."""
        self.jobs.clear()


class Handler(BaseHTTPRequestHandler):
    server: ModelServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.headers.append(dict(self.headers))
        if self.server.always is not None:
            return self._refuse(*self.server.always)
        if self.path.startswith("/nodes"):
            raylet = {"state": "ALIVE", "resourcesTotal": self.server.totals}
            return self._answer({"data": {"summary": [{"raylet": raylet}]}})
        if self.path == "/api/version":
            return self._answer({"ray_version": "2.60.0"})
        return self._answer(list(self.server.jobs.values()))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        if self.path.endswith("/stop"):
            known = self.server.jobs.get(self.path.split("/")[-2])
            if known is None:
                return self._refuse(404, "Job does not exist")
            known["status"] = "STOPPED"
            return self._answer({"stopped": True})
        if self.server.without_agent:
            self.server.without_agent -= 1
            return self._refuse(500, "No available agent to submit job, please try again later.")
        submission = body["submission_id"]
        if submission in self.server.jobs:
            text = f"Traceback (most recent call last):\nValueError: Job with submission_id {submission} already exists."  # noqa: E501
            return self._refuse(500, text)
        self.server.jobs[submission] = {
            **body,
            "status": "PENDING",
            "message": "Job has not started yet. It may be waiting for resources.",
            "start_time": int(time.time() * 1000),
            "end_time": None,
            "driver_info": None,
        }
        if self.server.answers_wrongly:
            return self._refuse(502, "Bad Gateway")
        return self._answer({"submission_id": submission})

    def _answer(self, plain: object) -> None:
        self._send(200, json.dumps(plain).encode())

    def _refuse(self, status: int, text: str, headers: Mapping[str, str] = {}) -> None:
        self._send(status, text.encode(), headers)

    def _send(self, status: int, content: bytes, headers: Mapping[str, str] = {}) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def model_server() -> Iterator[ModelServer]:
    server = ModelServer()
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
