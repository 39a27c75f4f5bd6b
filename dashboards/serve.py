"""Serve the folder of a report to browsers of this machine: `orch dashboard`."""

from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from orchestrator.errors import EnvironmentFault

HOST = "127.0.0.1"


class _ReportHandler(SimpleHTTPRequestHandler):
    def send_head(self) -> Any:
        """Refuse a Host header that does not name this machine.

        A page of the web whose name was pointed at this machine (DNS rebinding) reads nothing so.
        """
        if self.headers.get("Host", "").rpartition(":")[0].lower() not in (HOST, "localhost"):
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
            return None
        return super().send_head()

    def list_directory(self, path: Any) -> None:  # noqa: ARG002  (the base class gives it)
        """Show no list of files."""
        self.send_error(HTTPStatus.NOT_FOUND)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def listen(folder: Path, port: int) -> ThreadingHTTPServer:
    """Return a server of the files of a folder; 0 takes a free port. It answers this machine alone.

    Raise EnvironmentFault if it cannot listen.
    """
    handler = partial(_ReportHandler, directory=str(folder))
    try:
        return ThreadingHTTPServer((HOST, port), handler)
    except OSError as error:
        raise EnvironmentFault(
            f"cannot listen on port {port}: {error.strerror}; choose another with --port, "
            "0 takes a free one"
        ) from None
