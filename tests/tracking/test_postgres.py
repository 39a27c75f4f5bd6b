"""The mirror in a real PostgreSQL."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tracking_house import House, dump, grow, mirror_at_once
from tracking_servers import Postgres, programs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        programs() is None,
        reason="no PostgreSQL here: `python3 bootstrap.py test` as root installs it",
    ),
]


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    from mlflow.tracking import MlflowClient

    bin_ = programs()
    assert bin_ is not None
    root = Path(tempfile.mkdtemp(prefix="orch-pg-"))  # its user may not enter pytest's folders
    server = Postgres(root, bin_)
    MlflowClient(tracking_uri=server.database("migrated")).search_experiments()
    yield server
    server.stop()
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def new_database(postgres: Postgres) -> Callable[[str], str]:
    """Databases with MLflow's tables. What MLflow has open is closed first: PostgreSQL copies a
    database that nobody uses."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    for engine in SqlAlchemyStore._engine_map.values():
        engine.dispose()
    return lambda name: postgres.database(name, "migrated")


def fill(house: House) -> None:
    for cell in house.cells[:2]:
        house.attempt(cell, range(6))
        house.score(cell, 5, 0.5)
    house.folder.report.mkdir()
    (house.folder.report / "report.html").write_text("<p>β</p>")


def test_postgres_holds_what_sqlite_holds(house: House, new_database: Callable[[str], str]) -> None:
    fill(house)
    uri = new_database("mirror")
    house.mirror(uri)
    house.mirror()
    held = dump(uri, house.folder.experiment)
    assert held == dump(f"sqlite:///{house.database}", house.folder.experiment)
    again = house.mirror(uri)
    assert (again.created, again.updated, again.rows) == (0, 0, 0)
    (attempt,) = house.folder.cell(house.cells[0]).attempts()
    grow(attempt, [6, 7])
    assert house.mirror(uri).rows == 2 * 3


@pytest.mark.thorough
def test_experiments_that_start_at_once_share_a_new_database(
    house: House, postgres: Postgres
) -> None:
    """None of them finds the tables, and each makes them."""
    uri = postgres.database("at_once")
    assert all(len(dump(uri, name)) == 3 for name in mirror_at_once(house, uri, 2))
