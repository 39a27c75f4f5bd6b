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
from tests.dashboards.conftest import browser as browser

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


@pytest.mark.browser
@pytest.mark.thorough
def test_in_a_browser_views_show_their_runs_and_the_preview_the_report(
    make_house: Callable[..., House], tmp_path: Path, server: Server, browser: Any
) -> None:
    from mlflow.tracking import MlflowClient

    import dashboards
    from orchestrator.analysis.compare import compare
    from orchestrator.report import report
    from orchestrator.runs.collect import collect
    from orchestrator.tracking.views import runs_page

    house = make_house(tmp_path / "runs", seeds=6, name="seen")
    for cell in house.cells:
        house.attempt(cell, range(6))
    house.score(house.cells[0], 5, 0.5)
    records = collect(house.cells, house.folder)
    told = report(compare(house.spec, records, []), records, [], house.spec)
    house.folder.report.mkdir()
    (house.folder.report / "index.html").write_text(dashboards.html(told), encoding="utf-8")
    house.mirror(server.uri)
    known = MlflowClient(tracking_uri=server.uri).get_experiment_by_name("seen.micro")
    page = browser.new_page(viewport={"width": 1500, "height": 950})
    page.set_default_timeout(120_000)
    page.goto(f"{server.uri}/{runs_page(known.experiment_id)}")
    page.get_by_text("12 matching runs").wait_for()
    page.locator(".js-plotly-plot").first.wait_for()
    page.get_by_text("What orch compares").first.wait_for()
    # The seeds of a configuration are one line, its dots and a band.
    page.wait_for_function(
        "() => [...document.querySelectorAll('.js-plotly-plot')]"
        ".some(p => (p.data || []).length === 3 * 2)"
    )
    assert page.get_by_text("Group: k3.loss β0.1").count() == 1
    page.goto(f"{server.uri}/{runs_page(known.experiment_id)}")
    link = page.get_by_role("link", name="The report").first.get_attribute("href")
    page.goto(f"{server.uri}/{link}")
    page.frame_locator("iframe").locator("html[data-ready=yes]").wait_for(state="attached")
    assert page.frame_locator("iframe").locator(".plot canvas").count() > 1
