"""Serve the report over HTTP and update it: `orch dashboard`.

    /                     the page                    /version     version and progress, as JSON
    /report.md            the same in Markdown        /cells/NAME  the last lines of a cell's output
    /<name>               a file of the report's folder

A `Board` builds pages in the background. A request gets the last page without waiting.

The server accepts only GET and HEAD. It never builds a path from a request: it looks the name up
among the names of the files. Without a token, it answers only this machine, and only if the Host
header names this machine. So a web page of another origin cannot read the report through the
user's browser (DNS rebinding). With a token, every request needs the cookie that `/?token=...`
sets.
"""

import gzip
import hashlib
import hmac
import ipaddress
import json
import mimetypes
import re
import secrets
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit

from orchestrator.errors import EnvironmentFault, OrchError

LOOK_SECONDS = 2.0
SHARE_LOOKING, SHARE_BUILDING = 0.05, 0.25
"""Maximum shares of time for looking for changes and for building pages."""
FIRST_PORT, PORTS = 8700, 100
"""The first port, and the number of ports that are tried."""
_FIRST_PAGE_SECONDS = 600.0
"""Maximum time that a request waits for the first page."""
_IDLE_SECONDS = 30.0
"""Maximum time without data on a connection, between requests or within one."""
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_UNAUTHORIZED = "Open the address that `orch dashboard` printed, with its token."
_DRAWN = frozenset({"image/png", "application/pdf"})
_BYTES = "application/octet-stream"
_PLAIN_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_SET_COOKIE_PAGE = b"""<!doctype html><meta charset="utf-8"><title>orch</title>
<meta http-equiv="refresh" content="0;url=/"><a href="/">The report</a>
"""


class Page(NamedTuple):
    """The page at one moment, as HTML and as Markdown."""

    html: bytes
    markdown: bytes
    zipped: bytes = b""
    """`html` compressed by gzip: the page has megabytes, and tunnels are slow."""


class BoardState(NamedTuple):
    """A state of the experiment on disk."""

    digest: str
    """A digest of everything that the page depends on."""
    line: str
    """The progress of the experiment, in one line."""
    live: bool
    """False once every cell has ended."""


@dataclass(frozen=True)
class PageSource:
    """A pair of functions: `look` returns the state, `build` returns the page.

    Both may raise OrchError. Neither changes anything on disk.
    """

    look: Callable[[], BoardState]
    build: Callable[[], Page]


class Board:
    """A thread that builds pages and stores the last one. `close` ends the thread."""

    def __init__(self, source: PageSource, clock: Callable[[], float] = time.monotonic):
        self.builds = 0
        self.fault = ""
        """The reason why the newest page could not be built; the previous page is still served."""
        self.line = ""
        self.live = True
        self._source, self._clock = source, clock
        self._page: Page | None = None
        self._version = ""
        self._built, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="board", daemon=True)
        self._thread.start()

    @property
    def version(self) -> str:
        """Return a digest of the page, or an empty text before the first page."""
        return self._version

    def page(self, seconds: float | None = 0.0) -> Page | None:
        """Return the last page. Wait up to `seconds` for the first page; return None without it."""
        self._built.wait(seconds)
        return self._page

    def close(self) -> None:
        """End the thread. Wait at most one second for a page that is being built."""
        self._closed.set()
        self._thread.join(1.0)

    def _work(self) -> None:
        built, next_build = "", 0.0
        while True:
            began = self._clock()
            state = self._look()
            seconds_looking = self._clock() - began
            if state is not None and state.digest != built and self._clock() >= next_build:
                began = self._clock()
                self._build()
                built = state.digest
                cost = self._clock() - began
                next_build = self._clock() + cost * (1 / SHARE_BUILDING - 1)
            if self._closed.wait(max(LOOK_SECONDS, seconds_looking / SHARE_LOOKING)):
                return

    def _look(self) -> BoardState | None:
        try:
            state = self._source.look()
        except OrchError as error:
            self.fault = str(error)
            return None
        self.line, self.live = state.line, state.live
        return state

    def _build(self) -> None:
        try:
            page = self._source.build()
        except OrchError as error:
            self.fault = str(error)
        except Exception:
            traceback.print_exc()
            self.fault = "the page could not be built; the terminal of `orch dashboard` says why"
        else:
            self.fault = ""
            # The digest is of the page without its own version, which is put in below.
            version = hashlib.sha256(page.html).hexdigest()[:16]
            if version != self._version:
                head = b'<html lang="en"'
                html = page.html.replace(head, head + f' data-version="{version}"'.encode(), 1)
                self._page = page._replace(html=html, zipped=gzip.compress(html, 5, mtime=0))
                self._version = version
        self.builds += 1
        self._built.set()


@dataclass
class DashboardSite:
    """The content of a server: board, files, last lines of cells, and token."""

    board: Board
    files: Callable[[], Mapping[str, Path]]
    """A function that returns: name in the address -> file."""
    cell: Callable[[str], str]
    """Cell id or folder name -> the cell's last lines. It raises OrchError for an unknown cell."""
    token: str = ""
    status: dict[str, object] = field(default_factory=dict)
    """Further fields of /version: `mlflow`, the address of MLflow once it has started."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Ignore a browser that closed its page while loading. Print other errors."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            traceback.print_exc()


class _Handler(BaseHTTPRequestHandler):
    """A handler of one connection. http.server provides threads and timeouts."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "orch", ""
    timeout = _IDLE_SECONDS

    def log_message(self, *_: object) -> None:
        """Log nothing: the address of a request can contain the token."""


class DashboardServer(_Server):
    """A listening server. Open `address` in a browser."""

    def __init__(self, site: DashboardSite, host: str, port: int):
        self.site, self.host = site, host
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _PageHandler)
        self.names = {host.lower(), *({"localhost"} if is_loopback(host) else _own_names())}
        self.cookie = f"orch-{self.server_port}"

    @property
    def address(self) -> str:
        """Return the URL to open, with the token if the site has one."""
        # 0.0.0.0 means every address of this machine, and is none that a browser elsewhere can
        # open.
        shown = socket.gethostname() if self.host in ("0.0.0.0", "::") else self.host  # noqa: S104  (compared, not bound)
        shown = f"[{shown}]" if ":" in shown else shown
        query = f"?token={quote(self.site.token)}" if self.site.token else ""
        return f"http://{shown}:{self.server_port}/{query}"


def listen(site: DashboardSite, host: str, port: int | None) -> DashboardServer:
    """Bind and return the server. `port` None: use the first free port from FIRST_PORT on.

    Raise EnvironmentFault if the address cannot be bound, or if other machines can reach it and the
    site has no token.
    """
    if not is_loopback(host) and not site.token:
        raise EnvironmentFault(f"{host} can be reached by others: it needs a token")
    wanted = range(FIRST_PORT, FIRST_PORT + PORTS) if port is None else (port,)
    for number in wanted:
        try:
            return DashboardServer(site, host, number)
        except (OSError, OverflowError) as error:
            fault = getattr(error, "strerror", None) or str(error)
    advice = "choose another with --port" if port is not None else "choose one with --port"
    raise EnvironmentFault(f"cannot listen on {host}, port {wanted[-1]}: {fault}; {advice}")


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach an address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_token(text: str, token: str) -> bool:
    """Return True if a text is the token. The time does not depend on how much of it matches."""
    return hmac.compare_digest(text.encode(), token.encode())


def has_cookie(header: str, name: str, token: str) -> bool:
    """Return True if a Cookie header has the token under this name."""
    jar = SimpleCookie()
    try:
        jar.load(header)
    except CookieError:
        return False
    cookie = jar.get(name)
    return cookie is not None and is_token(cookie.value, token)


def new_token() -> str:
    """Return a random token of 32 characters."""
    return secrets.token_urlsafe(24)


_MIN_TOKEN = 16


def checked_token(token: str, alone: bool) -> str:
    """Return a token that a person gave; a new one for `auto`, or if others can reach the page.

    alone: True if only this machine can reach the page. Raise OrchError for a weak token.
    """
    if token == "auto" or not (token or alone):  # noqa: S105  (a mode, not a password)
        return new_token()
    if token and not re.fullmatch(rf"[A-Za-z0-9_-]{{{_MIN_TOKEN},}}", token):
        raise OrchError(
            f"--token: at least {_MIN_TOKEN} letters, digits, - and _; the one given is not. "
            "`--token auto` makes a good one"
        )
    return token


def _own_names() -> set[str]:
    return {"localhost", socket.gethostname().lower(), socket.getfqdn().lower()}


class _PageHandler(_Handler):
    server: DashboardServer

    def do_GET(self) -> None:
        """Respond to one request after checking its Host header or its cookie."""
        path, _, query = self.path.partition("?")
        if not self._has_right_host():
            self._send_text(HTTPStatus.MISDIRECTED_REQUEST, "This is not that host.")
        elif (token := self.server.site.token) and not has_cookie(
            self.headers.get("Cookie", ""), self.server.cookie, token
        ):
            self._send_cookie(parse_qs(query).get("token", [""])[0])
        else:
            self._answer(unquote(path, errors="replace"))

    do_HEAD = do_GET  # noqa: N815  (the base class calls it so)

    def _answer(self, path: str) -> None:
        board = self.server.site.board
        if path == "/":
            page = board.page(_FIRST_PAGE_SECONDS)
            if page is None:
                self._send_text(
                    HTTPStatus.SERVICE_UNAVAILABLE, board.fault or "There is no page yet."
                )
            else:
                zipped = "gzip" in self.headers.get("Accept-Encoding", "")
                self._send(
                    HTTPStatus.OK,
                    page.zipped if zipped else page.html,
                    "text/html; charset=utf-8",
                    "frame-ancestors 'none'",
                    {"Content-Encoding": "gzip"} if zipped else {},
                )
        elif path == "/version":
            self._version(board)
        elif path == "/report.md" and (page := board.page(_FIRST_PAGE_SECONDS)) is not None:
            self._send(HTTPStatus.OK, page.markdown, "text/plain; charset=utf-8")
        elif path.startswith("/cells/"):
            self._cell(path.removeprefix("/cells/").rstrip("/"))
        else:
            self._file(path.removeprefix("/"))

    def _version(self, board: Board) -> None:
        plain = {
            "version": board.version,
            "line": board.line,
            "live": board.live,
            "fault": board.fault,
            **self.server.site.status,
        }
        self._send(HTTPStatus.OK, json.dumps(plain).encode(), "application/json")

    def _cell(self, id_: str) -> None:
        try:
            self._send_text(HTTPStatus.OK, self.server.site.cell(id_))
        except OrchError as error:
            self._send_text(HTTPStatus.NOT_FOUND, str(error))

    def _file(self, name: str) -> None:
        path = self.server.site.files().get(name)
        try:
            content = path.read_bytes() if path is not None else None
        except OSError:
            content = None
        if content is None:
            self._send_text(HTTPStatus.NOT_FOUND, "There is nothing here.")
            return
        kind = mimetypes.guess_type(name)[0] or _BYTES
        if kind not in _DRAWN:
            kind = "text/plain; charset=utf-8" if kind.startswith("text/") else _BYTES
        self._send(HTTPStatus.OK, content, kind)

    def _has_right_host(self) -> bool:
        """Return True if the Host header names this server, or if the site has a token.

        Loopback addresses are always right: DNS rebinding needs a name.
        """
        if self.server.site.token:  # a browser sends the cookie only to the host that set it
            return True
        try:
            host = (urlsplit(f"//{self.headers.get('Host', '')}").hostname or "").lower()
        except ValueError:
            return False
        if host in self.server.names:
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False

    def _send_cookie(self, token: str) -> None:
        """Set the cookie with a page that loads the report. Refuse a wrong token.

        A redirect would fail if the link was on another site: then browsers do not send a
        SameSite=Strict cookie with the redirected request.
        """
        if not is_token(token, self.server.site.token):
            self._send_text(HTTPStatus.UNAUTHORIZED, _UNAUTHORIZED)
            return
        cookie = f"{self.server.cookie}={token}; HttpOnly; SameSite=Strict; Path=/"
        self._send(
            HTTPStatus.OK,
            _SET_COOKIE_PAGE,
            "text/html; charset=utf-8",
            _PLAIN_POLICY,
            {"Set-Cookie": cookie},
        )

    def _send_text(self, status: HTTPStatus, text: str) -> None:
        self._send(status, text.encode(errors="replace"), "text/plain; charset=utf-8")

    def _send(
        self,
        status: HTTPStatus,
        content: bytes,
        kind: str,
        policy: str = _PLAIN_POLICY,
        more: Mapping[str, str] | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            "Content-Security-Policy": policy,
            **_HEADERS,
            **(more or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send an error of http.server as plain text instead of HTML."""
        self.close_connection = True
        text = message or explain or HTTPStatus(code).phrase
        self._send(HTTPStatus(code), f"{text}\n".encode(errors="replace"), "text/plain")
