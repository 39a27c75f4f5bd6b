"""The served page: who may ask, what is given out, and that it stays up to date."""

import gzip
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dashboards import serve as board_module
from dashboards.serve import (
    Board,
    BoardState,
    DashboardServer,
    DashboardSite,
    Page,
    PageSource,
    listen,
    new_token,
)
from orchestrator.errors import EnvironmentFault, SelectionError

TOKEN = new_token()


class Experiment:
    """What is on disk, as far as the board knows."""

    def __init__(self) -> None:
        self.text, self.digest, self.fault, self.bug = "one", "1", "", False

    def look(self) -> BoardState:
        if self.fault == "look":
            raise SelectionError("the folder is gone")
        return BoardState(self.digest, f"at {self.digest}", True)

    def build(self) -> Page:
        if self.bug:
            raise ZeroDivisionError
        if self.fault == "build":
            raise SelectionError("the spec has a fault")
        html = f'<!doctype html><html lang="en"><p>{self.text}</p></html>'
        return Page(html.encode(), self.text.encode())

    def change(self, text: str) -> None:
        self.text, self.digest = text, text


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board_module, "LOOK_SECONDS", 0.01)


@pytest.fixture
def experiment() -> Experiment:
    return Experiment()


def until(true: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.01)


def cell(name: str) -> str:
    if name != "abc":
        raise SelectionError(f"no launched cell is called '{name}'")
    return "last <lines>"


@contextmanager
def serving(
    source: Any, files: Mapping[str, Path] | None = None, token: str = "", host: str = "127.0.0.1"
) -> Iterator[DashboardServer]:
    kept = Board(PageSource(source.look, source.build))
    with listen(DashboardSite(kept, lambda: files or {}, cell, token), host, 0) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        try:
            yield served
        finally:
            served.shutdown()
            kept.close()


class Answer:
    def __init__(self, served: DashboardServer, path: str, method: str = "GET", **headers: str):
        connection = http.client.HTTPConnection("127.0.0.1", served.server_port, timeout=30)
        connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        got = connection.getresponse()
        self.status, self.headers, self.body = got.status, got.headers, got.read()
        connection.close()


def test_it_gives_out_the_page_and_what_belongs_to_it(
    experiment: Experiment, tmp_path: Path
) -> None:
    picture, table = tmp_path / "a.png", tmp_path / "cürves #1.csv"
    picture.write_bytes(b"\x89PNG")
    table.write_text("a,b\n")
    with serving(experiment, {"figures/a.png": picture, table.name: table}) as served:
        page = Answer(served, "/")
        assert page.status == 200
        assert b"<p>one</p>" in page.body
        version = json.loads(Answer(served, "/version").body)
        assert f'data-version="{version["version"]}"'.encode() in page.body
        assert (version["line"], version["live"], version["fault"]) == ("at 1", True, "")
        assert gzip.decompress(Answer(served, "/", Accept_Encoding="gzip").body) == page.body
        assert Answer(served, "/report.md").body == b"one"
        for name in ("abc", "abc/"):
            lines = Answer(served, f"/cells/{name}")
            assert (lines.body, lines.headers["Content-Type"]) == (
                b"last <lines>",
                "text/plain; charset=utf-8",
            )
        assert Answer(served, "/figures/a.png").headers["Content-Type"] == "image/png"
        assert Answer(served, "/c%C3%BCrves%20%231.csv").body == b"a,b\n"
        head = Answer(served, "/", "HEAD")
        assert (head.status, head.body) == (200, b"")
        assert head.headers["Content-Length"] == str(len(page.body))


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/figures/../../x",
        "/cells/../../etc/passwd",
        "/cells/",
        "/figures",
        "/a.png%00",
        "/\x7f",
        "/%ff",
        "*",
        "//[",
    ],
)
def test_nothing_else_is_there(experiment: Experiment, path: str, tmp_path: Path) -> None:
    with serving(experiment) as served:
        got = Answer(served, path.replace("\x7f", "%7f"))
        assert got.status == 404
        assert b"root:" not in got.body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_it_only_reads(experiment: Experiment, method: str) -> None:
    with serving(experiment) as served:
        got = Answer(served, "/", method, Content_Length="0")
        assert got.status == 501
        assert got.headers["X-Content-Type-Options"] == "nosniff"


def test_every_answer_is_guarded(experiment: Experiment) -> None:
    with serving(experiment) as served:
        for path in ("/", "/version", "/report.md", "/nothing"):
            headers = Answer(served, path).headers
            assert headers["X-Frame-Options"] == "DENY"
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Referrer-Policy"] == "no-referrer"
            assert headers["Cache-Control"] == "no-store"
            assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
            assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("localhost:9", 200),
        ("LOCALHOST", 200),
        ("[::1]:80", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 421),
        ("10.0.0.1", 421),
        ("localhost@evil.example", 421),
        ("[", 421),
    ],
)
def test_a_name_that_is_not_this_machines_is_refused(
    experiment: Experiment, host: str, status: int
) -> None:
    with serving(experiment) as served:
        assert Answer(served, "/", Host=host).status == status


def test_with_a_token_only_its_holder_looks(experiment: Experiment) -> None:
    with serving(experiment, token=TOKEN) as served:
        assert served.address == f"http://127.0.0.1:{served.server_port}/?token={TOKEN}"
        for path in (
            "/",
            "/version",
            "/report.md",
            "/cells/abc",
            "/?token=",
            "/?token=x",
            f"/?token={TOKEN}x",
            "/?token=%C3%BC",
        ):
            refused = Answer(served, path)
            assert (refused.status, refused.headers["Set-Cookie"]) == (401, None)
            assert b"one" not in refused.body
        entered = Answer(served, f"/?token={TOKEN}")
        cookie = entered.headers["Set-Cookie"]
        assert b"one" not in entered.body
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
        pair = cookie.split(";")[0]
        assert Answer(served, "/", Cookie=pair).status == 200
        assert Answer(served, "/", Cookie=f"a=b; {pair}", Host="login.example").status == 200
        for wrong in (pair + "x", "orch-1=" + TOKEN, pair.split("=")[0] + '="', "=;=", "ü"):
            assert Answer(served, "/", Cookie=wrong.encode().decode("latin-1")).status == 401


def test_it_does_not_listen_where_others_are_without_a_token(experiment: Experiment) -> None:
    kept = Board(PageSource(experiment.look, experiment.build))
    for host in ("0.0.0.0", "::", "10.1.2.3", "example.org", ""):  # noqa: S104  (what is tested)
        with pytest.raises(EnvironmentFault, match="needs a token"):
            listen(DashboardSite(kept, dict, cell), host, 0)
    with pytest.raises(EnvironmentFault, match="cannot listen on"):
        listen(DashboardSite(kept, dict, cell, TOKEN), "203.0.113.7", 0)
    with serving(experiment) as served, pytest.raises(EnvironmentFault, match="--port"):
        listen(DashboardSite(kept, dict, cell), "127.0.0.1", served.server_port)
    kept.close()


def test_two_dashboards_find_ports_of_their_own(experiment: Experiment) -> None:
    kept = Board(PageSource(experiment.look, experiment.build))
    site = DashboardSite(kept, dict, cell)
    with listen(site, "127.0.0.1", None) as one, listen(site, "127.0.0.1", None) as other:
        assert one.server_port != other.server_port
    kept.close()


def test_the_page_is_built_when_something_changed_and_only_then(experiment: Experiment) -> None:
    kept = Board(PageSource(experiment.look, experiment.build))
    page = kept.page(30)
    assert page is not None
    first = kept.version
    time.sleep(0.2)
    assert kept.builds == 1
    experiment.change("two")
    until(lambda: kept.version != first)
    assert kept.builds == 2
    again = kept.page()
    assert again is not None
    assert b"<p>two</p>" in again.html
    kept.close()


@pytest.mark.parametrize("fault", ["build", "look", "bug"])
def test_a_fault_keeps_the_last_page_and_is_told(
    experiment: Experiment, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = Board(PageSource(experiment.look, experiment.build))
    assert kept.page(30) is not None
    experiment.fault, experiment.bug = fault, fault == "bug"
    experiment.change("two")
    until(lambda: kept.fault)
    page = kept.page()
    assert page is not None
    assert b"<p>one</p>" in page.html
    if fault == "bug":
        assert "ZeroDivisionError" in capsys.readouterr().err
    experiment.fault, experiment.bug = "", False
    experiment.change("three")
    until(lambda: not kept.fault)
    until(lambda: b"three" in (kept.page() or Page(b"", b"")).html)
    kept.close()


def test_the_last_page_is_given_at_once_while_the_next_is_built(experiment: Experiment) -> None:
    entered, let_go = threading.Event(), threading.Event()
    build = experiment.build

    def slow() -> Page:
        if experiment.text != "one":
            entered.set()
            assert let_go.wait(30)
        return build()

    experiment.build = slow  # type: ignore[method-assign]  # a slow build in the place of the real one
    with serving(experiment) as served:
        assert Answer(served, "/").status == 200
        experiment.change("two")
        assert entered.wait(30)
        assert b"<p>one</p>" in Answer(served, "/").body
        let_go.set()
        until(lambda: b"<p>two</p>" in Answer(served, "/").body)
