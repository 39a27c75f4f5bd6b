"""The proxy before MLflow: who may pass, and what is forwarded, to a small server."""

import base64
import http.client
import json
import os
import socketserver
import stat
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from dashboards.serve import MlflowProxy, open_mlflow
from orchestrator.tracking import server as tracking_server
from orchestrator.tracking.server import UnixConnection
from orchestrator.tracking.store import Store

TOKEN = "the-same-in-every-process-of-a-run"


class _Echo(BaseHTTPRequestHandler):
    """Answers what it was asked, as JSON."""

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length", "0"))
        plain = {
            "method": self.command,
            "path": self.path,
            "body": self.rfile.read(length).decode(),
            "headers": {name.lower(): value for name, value in self.headers.items()},
        }
        content = json.dumps(plain).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET  # noqa: N815  (the base class calls it so)

    def address_string(self) -> str:
        return "socket"

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def proxy() -> Iterator[MlflowProxy]:
    with TemporaryDirectory(prefix="proxy-") as folder:
        path = Path(folder, "socket")
        with (
            socketserver.ThreadingUnixStreamServer(str(path), _Echo) as behind,
            open_mlflow(path, TOKEN) as opened,
        ):
            for server in (behind, opened):
                threading.Thread(target=server.serve_forever, daemon=True).start()
            yield opened
            opened.shutdown()
            behind.shutdown()


def ask(
    proxy: MlflowProxy, path: str = "/", method: str = "GET", body: str = "", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", proxy.server_port, timeout=30)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body.encode() or None, named)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), content


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"me:{password}".encode()).decode()


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Cookie": "orch-mlflow-0=x"},
        {"Cookie": "="},
        {"Authorization": "Bearer "},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": basic("")},
        {"Authorization": "Basic ===="},
    ],
)
def test_another_user_of_the_machine_is_refused(
    proxy: MlflowProxy, method: str, headers: dict[str, str]
) -> None:
    path = "/api/2.0/mlflow/experiments/create"
    status, _, content = ask(proxy, path, method, '{"name": "theirs"}', **headers)
    assert status == 401
    assert TOKEN.encode() not in content


@pytest.mark.parametrize("query", ["", "?token=", "?token=x", f"?token={TOKEN[:-1]}"])
def test_a_wrong_address_opens_nothing(proxy: MlflowProxy, query: str) -> None:
    status, headers, _ = ask(proxy, f"/{query}")
    assert (status, "Set-Cookie" in headers) == (401, False)


def test_the_printed_address_opens_it_for_a_browser(proxy: MlflowProxy) -> None:
    assert proxy.opened == f"http://127.0.0.1:{proxy.server_port}/?token={TOKEN}"
    status, headers, page = ask(proxy, f"/?token={TOKEN}")
    assert status == 200
    assert b"location.hash" in page, "a view is named behind the #"
    assert "HttpOnly; SameSite=Strict" in headers["Set-Cookie"]
    cookie = headers["Set-Cookie"].partition(";")[0]
    status, headers, content = ask(
        proxy, "/ajax-api/2.0/x?a=1", "POST", '{"β": 1}', Cookie=cookie, Content_Type="text/json"
    )
    seen: dict[str, Any] = json.loads(content)
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert (seen["method"], seen["path"]) == ("POST", "/ajax-api/2.0/x?a=1")
    assert (seen["body"], seen["headers"]["content-type"]) == ('{"β": 1}', "text/json")
    assert not {"cookie", "authorization"} & set(seen["headers"])


@pytest.mark.parametrize("given", [f"Bearer {TOKEN}", basic(TOKEN)])
def test_a_program_gives_the_token_as_mlflows_client_does(proxy: MlflowProxy, given: str) -> None:
    status, _, content = ask(proxy, "/health", Authorization=given)
    assert (status, json.loads(content)["path"]) == (200, "/health")


def test_one_connection_carries_one_request(proxy: MlflowProxy) -> None:
    """A second request behind the first is not handed on, nor a body of unknown length."""
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    status, headers, _ = ask(proxy, "/", **bearer)
    assert (status, headers["Connection"]) == (200, "close")
    status, _, _ = ask(proxy, "/", "POST", "0\r\n\r\n", Transfer_Encoding="chunked", **bearer)
    assert status == 411
    assert ask(proxy, "/", "POST", "x", Content_Length="-1", **bearer)[0] == 411


def test_a_server_that_does_not_answer_yet_is_told(tmp_path: Path) -> None:
    with open_mlflow(tmp_path / "none", TOKEN) as opened:
        threading.Thread(target=opened.serve_forever, daemon=True).start()
        status, _, content = ask(opened, "/", Authorization=f"Bearer {TOKEN}")
        opened.shutdown()
    assert (status, b"load the page again" in content) == (502, True)


def test_no_proxy_without_a_token(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="could open MLflow"):
        open_mlflow(tmp_path / "none", "")


def test_nobody_else_can_enter_the_sockets_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also under an open umask and a long folder for temporary files."""
    kept: list[list[str]] = []
    real = subprocess.Popen

    def started(argv: list[str], **_: Any) -> Any:
        kept.append(argv)
        return real(["cat"], stdin=subprocess.PIPE)

    monkeypatch.setattr(subprocess, "Popen", started)
    monkeypatch.setattr(tracking_server, "gettempdir", lambda: "/" + "long" * 40)
    before = os.umask(0)
    try:
        with tracking_server.serving(
            Store("sqlite:////nowhere/x.db", "x", None, None, False)
        ) as server:
            assert server.socket is not None
            folder = server.socket.parent
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert len(str(server.socket)) < 104
            assert not {"--host", "--port"} & set(kept[0])
            with pytest.raises(OSError, match="No such file"):
                UnixConnection(server.socket, 1).connect()
    finally:
        os.umask(before)
