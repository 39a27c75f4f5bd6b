"""Answers HTTP requests (JSON in, JSON out) with a sampler, in the place of an inference server.

Requests that arrive together are sampled together.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from typing import Any

Answer = Callable[[Mapping[str, Any]], object]
GATHER_SECONDS = 0.02
"""How long the first request of a batch waits for others."""


class Batches:
    """Samples the prompts of several threads in one call."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self._waiting: list[tuple[Sequence[int], int, float, list[Any], threading.Event]] = []
        self._arrived = threading.Condition()
        threading.Thread(target=self._serve, daemon=True).start()

    def sample(self, prompt: Sequence[int], max_tokens: int, temperature: float) -> Any:
        """Return the response to a prompt. Raise what the sampler raised."""
        answer: list[Any] = []
        done = threading.Event()
        with self._arrived:
            self._waiting.append((prompt, max_tokens, temperature, answer, done))
            self._arrived.notify()
        done.wait()
        if isinstance(answer[0], Exception):
            raise answer[0]
        return answer[0]

    def _serve(self) -> None:
        while True:
            with self._arrived:
                self._arrived.wait_for(lambda: bool(self._waiting))
            time.sleep(GATHER_SECONDS)
            with self._arrived:
                batch, self._waiting = self._waiting, []
            for key in {(tokens, temperature) for _, tokens, temperature, _, _ in batch}:
                alike = [each for each in batch if (each[1], each[2]) == key]
                try:
                    responses = self.sampler.sample([each[0] for each in alike], *key)
                except Exception as error:
                    responses = [error] * len(alike)
                for (*_, answer, done), response in zip(alike, responses, strict=True):
                    answer.append(response)
                    done.set()


class JsonServer(ThreadingHTTPServer):
    """Answers on a port of this machine; 0: any, see `server_port`. A path without a route is
    answered with `{}`, a route that raises with status 500."""

    request_queue_size = 256
    daemon_threads = True

    def __init__(self, port: int, routes: Mapping[str, Answer]) -> None:
        self.routes = routes
        super().__init__(("127.0.0.1", port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        question = json.loads(self.rfile.read(length) or b"{}")
        status, answer = 200, object()
        route = vars(self.server)["routes"].get(self.path.partition("?")[0], lambda _: {})
        try:
            answer = route(question)
        except Exception as error:
            import_module("traceback").print_exc()
            status, answer = 500, {"error": f"{type(error).__name__}: {error}"}
        text = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Log nothing."""
