"""The mirror through a real tracking server on this machine, and in a real PostgreSQL."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lifeline import let_go
from tracking_house import House, dump, grow, mirror_at_once
from tracking_servers import Postgres, Server, programs

from orchestrator.errors import EnvironmentFault

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> Iterator[Server]:
    """One for all tests: it takes half a minute to start."""
    root = tmp_path_factory.mktemp("server")
    shutil.copy(migrated, root / "server.db")
    running = Server(root, f"sqlite:///{root}/server.db", str(root / "artifacts"))
    running.start()
    yield running
    let_go(running.process)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    from mlflow.tracking import MlflowClient

    bin_ = programs()
    if bin_ is None:
        pytest.skip("no PostgreSQL here: `python3 bootstrap.py test` as root installs it")
    root = Path(tempfile.mkdtemp(prefix="orch-pg-"))  # its user may not enter pytest's folders
    server = Postgres(root, bin_)
    MlflowClient(tracking_uri=server.database("migrated")).search_experiments()
    yield server
    server.stop()
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(params=["postgres", pytest.param("server", marks=pytest.mark.thorough)])
def uri(request: pytest.FixtureRequest) -> str:
    """An address with MLflow's tables. What MLflow has open is closed first: PostgreSQL copies a
    database that nobody uses."""
    if request.param == "server":
        running: Server = request.getfixturevalue("server")
        return running.uri
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    database: Postgres = request.getfixturevalue("postgres")
    for engine in SqlAlchemyStore._engine_map.values():
        engine.dispose()
    return database.database("mirror", "migrated")


def test_it_holds_what_a_file_holds(house: House, uri: str) -> None:
    house.fill()
    report = house.mirror(uri)
    if uri.startswith("http"):
        assert report.view.startswith(f"{uri}/#/experiments/")
    held = dump(uri, house.folder.experiment)
    house.mirror()
    assert held == house.held
    again = house.mirror(uri)
    assert (again.created, again.updated, again.rows, again.unchanged) == (0, 0, 0, 4)
    (attempt,) = house.folder.cell(house.cells[1]).attempts()
    grow(attempt, [8, 9])
    assert house.mirror(uri).rows == 2 * 3


@pytest.mark.thorough
def test_experiments_that_start_at_once_share_a_new_postgres(
    house: House, postgres: Postgres
) -> None:
    """None of them finds the tables, and each makes them."""
    uri = postgres.database("at_once")
    assert all(len(dump(uri, name)) == 3 for name in mirror_at_once(house, uri, 2))


@pytest.mark.thorough
def test_a_server_killed_in_the_middle_is_completed_and_nothing_doubled(
    make_house: Callable[..., House],
    tmp_path: Path,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from mlflow.tracking import MlflowClient

    house = make_house(tmp_path / "runs", name="cut")
    house.fill()
    real = MlflowClient.log_batch

    def killing(*args: Any, **more: Any) -> Any:
        done = real(*args, **more)
        if more.get("metrics") and server.process.poll() is None:
            server.kill()
        return done

    with monkeypatch.context() as patched:
        patched.setattr(MlflowClient, "log_batch", killing)
        with pytest.raises(EnvironmentFault, match="cannot be used"):
            house.mirror(server.uri)
    server.start()
    report = house.mirror(server.uri)
    assert 0 < report.unchanged < 4
    completed = dump(server.uri, house.folder.experiment)
    house.mirror()
    assert completed == house.held
