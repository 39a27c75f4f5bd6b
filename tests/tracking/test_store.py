"""Which MLflow is used, and what is said when it cannot be."""

import base64
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from lifeline import free_port
from tracking_house import House, dump, mirror_at_once

from orchestrator.errors import EnvironmentFault, OrchError
from orchestrator.rundir import RunFolder
from orchestrator.tracking.store import connected, store_of


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.of(tmp_path / "runs", "x", "micro")


def refusal(house: House, uri: str) -> str:
    before = {p: p.read_bytes() for p in house.folder.path.rglob("*") if p.is_file()}
    with pytest.raises(EnvironmentFault) as caught:
        house.mirror(uri)
    assert {p: before.get(p) for p in before} == {p: p.read_bytes() for p in before}
    return str(caught.value)


def test_the_nearest_choice_of_store_wins(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert store_of(folder, None).uri == f"sqlite:///{tmp_path}/runs/mlflow.db"
    assert store_of(folder, None).artifacts == tmp_path / "runs/mlartifacts/x.micro"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://host:5000")
    assert store_of(folder, None).uri == "http://host:5000"
    assert store_of(folder, None).artifacts is None
    assert store_of(folder, "sqlite:////a/b.db").database == Path("/a/b.db")


def test_a_server_that_is_down_costs_a_sentence_and_its_password_goes_nowhere(
    house: House, capfd: pytest.CaptureFixture[str]
) -> None:
    """Every byte written: log, terminal, error and the whole runs folder."""
    house.attempt(house.cells[0], range(2))
    port, began = free_port(), time.monotonic()
    address = f"http://me:hush%40hush@127.0.0.1:{port}"
    said = refusal(house, address)
    site = house.spec.site.model_copy(update={"tracking_uri": address})
    with pytest.raises(EnvironmentFault) as caught:
        house._replace(spec=house.spec.model_copy(update={"site": site})).mirror()
    assert time.monotonic() - began < 60
    assert said.startswith(f"MLflow at http://***@127.0.0.1:{port} cannot be used: ")
    assert "refused" in said
    assert "orch report" in said
    seen = "".join(
        [str(caught.value), said, repr(store_of(house.folder, address)), *capfd.readouterr()]
    )
    files = [p.read_bytes() for p in house.folder.path.parent.rglob("*") if p.is_file()]
    for secret in ("hush@hush", "hush%40hush"):
        assert secret not in seen
        assert not [raw for raw in files if secret.encode() in raw]
    assert "MLFLOW_TRACKING_PASSWORD" not in os.environ


def test_an_error_that_quotes_the_password_is_told_without_it(folder: RunFolder) -> None:
    address = "http://me:p%40ss@127.0.0.1:9"
    with (
        pytest.raises(EnvironmentFault) as caught,
        connected(store_of(folder, address)),
    ):
        raise OSError(f"no answer from {address}, asked as me with p@ss")
    assert "no answer from http://***@127.0.0.1:9, asked as me with ***" in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("uri", ["postgresql://u:hush@127.0.0.1:1/db", "mysql://u:hush@h/db"])
def test_a_database_that_does_not_answer(house: House, uri: str) -> None:
    house.attempt(house.cells[0], range(2))
    began = time.monotonic()
    said = refusal(house, uri)
    assert time.monotonic() - began < 30
    assert "hush" not in said


@pytest.mark.parametrize("uri", ["file:/nowhere/mlruns", "foo://bar", "/nowhere/mlruns"])
def test_a_store_mlflow_does_not_take(house: House, uri: str) -> None:
    house.attempt(house.cells[0], range(2))
    assert f"MLflow at {uri} cannot be used" in refusal(house, uri)


def test_a_file_that_is_no_database_is_to_be_moved_away(house: House, tmp_path: Path) -> None:
    house.attempt(house.cells[0], range(2))
    store = tmp_path / "broken.db"
    store.write_text("garbage " * 100)
    said = refusal(house, f"sqlite:///{store}")
    assert "file is not a database: move that file away" in said
    assert "SELECT" not in said


class Guarded(BaseHTTPRequestHandler):
    """A server that turns everybody away and keeps what they showed."""

    seen: ClassVar[list[str | None]] = []
    status, body = 401, b""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.seen.append(self.headers["Authorization"])
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.body)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *args: Any) -> None:
        pass


class Braces(Guarded):
    """A proxy that answers each request with an empty object."""

    status, body = 200, b"{}"


def refused_by(server: type[Guarded], house: House, person: str = "") -> str:
    """What the mirror says of this server."""
    house.attempt(house.cells[0], range(2))
    with ThreadingHTTPServer(("127.0.0.1", 0), server) as opened:
        threading.Thread(target=opened.serve_forever, daemon=True).start()
        said = refusal(house, f"http://{person}127.0.0.1:{opened.server_port}")
        opened.shutdown()
    return said


def test_the_password_of_an_address_is_shown_to_its_server_only(house: House) -> None:
    assert "401" in refused_by(Guarded, house, "me:p%40ss@")
    assert set(Guarded.seen) == {"Basic " + base64.b64encode(b"me:p@ss").decode()}


def test_a_proxy_that_answers_nothing_is_no_mlflow(house: House) -> None:
    assert "is no MLflow. Nothing is lost" in refused_by(Braces, house)


def test_a_store_of_another_mlflow(house: House) -> None:
    house.attempt(house.cells[0], range(2))
    with closing(sqlite3.connect(house.database)) as database, database:
        database.execute("update alembic_version set version_num = 'f4a9b2c7d1e6'")
    with pytest.raises(EnvironmentFault, match=r"another MLflow has written it.*mlflow db upgrade"):
        house.mirror()


def test_a_folder_in_the_place_of_the_database(house: House) -> None:
    house.attempt(house.cells[0], range(2))
    house.database.unlink()
    house.database.mkdir()
    with pytest.raises(OrchError, match="unable to open database file"):
        house.mirror()


def test_a_malformed_request_is_a_bug_and_keeps_its_traceback(house: House) -> None:
    from mlflow.exceptions import MlflowException

    def ask() -> None:
        with connected(store_of(house.folder, None)) as client:
            client.log_metric(client.create_run("0").info.run_id, "a@b", 1.0)

    with pytest.raises(MlflowException, match="Names may only contain"):
        ask()


def test_a_bug_of_ours_is_not_called_a_fault_of_mlflow(house: House) -> None:
    with pytest.raises(ZeroDivisionError), connected(store_of(house.folder, None)):
        raise ZeroDivisionError


def test_an_exclusive_lock_on_the_file_is_waited_for(house: House) -> None:
    """It was given up after 5 s."""
    house.attempt(house.cells[0], range(2))
    house.mirror()
    house.attempt(house.cells[1], range(2))
    with closing(sqlite3.connect(house.database, check_same_thread=False)) as holder:
        holder.execute("begin exclusive")
        threading.Timer(8, holder.rollback).start()
        began = time.monotonic()
        assert house.mirror().created == 1
        assert time.monotonic() - began > 5


@pytest.mark.slow
def test_experiments_that_start_at_once_share_a_new_store(
    make_house: Callable[..., House], tmp_path: Path
) -> None:
    house = make_house(tmp_path / "runs")
    house.database.unlink()
    names = mirror_at_once(house, None, 2)
    assert all(len(dump(f"sqlite:///{house.database}", name)) == 3 for name in names)
