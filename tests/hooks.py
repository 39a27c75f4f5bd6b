"""Whom tests let orch tell that a run has ended: a webhook, and a command that keeps its input."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

SECRET = "T0P/s3cret"
KEEP = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(sys.stdin.read())"


@contextmanager
def webhook(status: int = 200) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the address of a webhook, and the messages that it got."""
    messages: list[dict[str, Any]] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.headers["Content-Type"] == "application/json"
            messages.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    held = HTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=held.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{held.server_port}/hook/{SECRET}", messages
    finally:
        held.shutdown()
        held.server_close()
