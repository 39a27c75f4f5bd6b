"""A proxy before MLflow: a local port that forwards requests only if they have a token.

MLflow has no authentication, so its server listens on a Unix socket in a folder that no other user
can enter (orchestrator/tracking/server.py). The proxy forwards requests to that socket. A browser
opens `/?token=...` once and gets a cookie. A program sends the token as a bearer token or as a
password (MLFLOW_TRACKING_TOKEN). Each connection carries one request, so every forwarded request
has been checked.
"""

import base64
import binascii
import hashlib
import http.client
import sys
import traceback
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote

from dashboards.serve import has_cookie, is_token
from orchestrator.errors import EnvironmentFault
from orchestrator.tracking.server import UnixConnection

FIRST_PORT = 8600
LARGEST_BODY = 2**30
"""Maximum number of bytes of a request's body. One request can carry a whole artifact."""
_IDLE_SECONDS, _ANSWER_SECONDS = 30.0, 600.0
_LEAD_ON = 'location.replace("/" + location.hash)'
_DIGEST = base64.b64encode(hashlib.sha256(_LEAD_ON.encode()).digest()).decode()
_ENTRANCE = f"""<!doctype html><meta charset="utf-8"><title>MLflow</title>
<script>{_LEAD_ON}</script><a href="/">MLflow</a>
""".encode()
_POLICY = f"default-src 'none'; script-src 'sha256-{_DIGEST}'; frame-ancestors 'none'"
_OF_CONNECTION = frozenset(
    [
        "connection",
        "expect",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ]
)
"""Headers that apply to one connection only and are not forwarded."""
_REFUSED = "Open the address that `orch dashboard` printed, with its token.\n"


class Door(ThreadingHTTPServer):
    """A listening proxy before the server at `socket`. `opened` is its address with the token."""

    daemon_threads = True

    def __init__(self, socket: Path, token: str, port: int):
        self.socket_path, self.token = socket, token
        super().__init__(("127.0.0.1", port), _Handler)
        self.cookie = f"orch-mlflow-{self.server_port}"
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.opened = f"{self.address}/?token={quote(token)}"

    def handle_error(self, *_: object) -> None:
        """Ignore a browser that closed its page while loading. Print other errors."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            traceback.print_exc()


def open_door(socket: Path, token: str) -> Door:
    """Bind and return a proxy on the first free port from FIRST_PORT on.

    The ports are fixed, so that a user can configure a tunnel. Raise EnvironmentFault if no port is
    free, and ValueError without a token.
    """
    if not token:
        raise ValueError("a door without a token would be open")
    for port in range(FIRST_PORT, FIRST_PORT + 100):
        try:
            return Door(socket, token, port)
        except OSError:
            continue
    raise EnvironmentFault(f"no port from {FIRST_PORT} to {FIRST_PORT + 99} is free for MLflow")


class _Handler(BaseHTTPRequestHandler):
    server: Door
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "orch", ""
    timeout = _IDLE_SECONDS

    def do_GET(self) -> None:
        """Forward a request that has the token. Set the cookie for `/?token=...`. Refuse others."""
        self.close_connection = True
        token = self.server.token
        _, _, query = self.path.partition("?")
        opens = self.command == "GET" and is_token(parse_qs(query).get("token", [""])[0], token)
        if opens:
            cookie = f"{self.server.cookie}={token}; HttpOnly; SameSite=Strict; Path=/"
            self._send(HTTPStatus.OK, _ENTRANCE, "text/html; charset=utf-8", cookie)
        elif has_cookie(self.headers.get("Cookie", ""), self.server.cookie, token) or is_token(
            self._told(), token
        ):
            self._hand_on()
        else:
            self._send(HTTPStatus.UNAUTHORIZED, _REFUSED.encode(), "text/plain; charset=utf-8")

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_GET  # noqa: N815  (names of the base class)

    def _told(self) -> str:
        """Return the token in the Authorization header (bearer or password), or an empty text."""
        kind, _, given = self.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return given.strip()
        try:
            return base64.b64decode(given, validate=True).decode().partition(":")[2]
        except (binascii.Error, ValueError):
            return ""

    def _hand_on(self) -> None:
        length = self.headers.get("Content-Length", "0")
        # Without a length only the chunks tell where a body ends, and this server reads none.
        if "Transfer-Encoding" in self.headers or not length.isdecimal():
            self._send(HTTPStatus.LENGTH_REQUIRED, b"A length is needed.\n", "text/plain")
            return
        if int(length) > LARGEST_BODY:
            self._send(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, b"That is too long.\n", "text/plain")
            return
        headers = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in _OF_CONNECTION | {"authorization", "cookie"}
        }
        connection = UnixConnection(self.server.socket_path, _ANSWER_SECONDS)
        try:
            body = self.rfile.read(int(length)) if int(length) else None
            connection.request(self.command, self.path, body, headers | {"Connection": "close"})
            self._hand_back(connection.getresponse())
        except (OSError, http.client.HTTPException) as error:
            # The browser has gone: there is nobody to answer.
            if isinstance(error, BrokenPipeError):
                raise
            text = "MLflow does not answer yet: load the page again in a moment.\n"
            self._send(HTTPStatus.BAD_GATEWAY, text.encode(), "text/plain; charset=utf-8")
        finally:
            connection.close()

    def _hand_back(self, answer: http.client.HTTPResponse) -> None:
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            # send_response has written these two already.
            if name.lower() not in _OF_CONNECTION | {"date", "server"}:
                self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()
        while self.command != "HEAD" and (part := answer.read(65536)):
            self.wfile.write(part)

    def _send(self, status: HTTPStatus, content: bytes, kind: str, cookie: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Connection", "close")
        if cookie:
            self.send_header("Set-Cookie", cookie)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Log nothing: the address of a request can contain the token."""
