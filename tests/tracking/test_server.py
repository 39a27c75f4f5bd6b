"""The mirror through a real tracking server on this machine."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lifeline import let_go
from tracking_house import House, dump, grow
from tracking_servers import Server

from orchestrator.errors import EnvironmentFault
from tests.dashboards.conftest import browser as browser

pytestmark = [pytest.mark.slow, pytest.mark.thorough]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> Iterator[Server]:
    """One for all tests: it takes half a minute to start."""
    root = tmp_path_factory.mktemp("server")
    shutil.copy(migrated, root / "server.db")
    running = Server(root, f"sqlite:///{root}/server.db", str(root / "artifacts"))
    running.start()
    yield running
    let_go(running.process)


def fill(house: House) -> None:
    for cell in house.cells[:3]:
        house.attempt(cell, range(6))
        house.score(cell, 5, 0.5)
    house.folder.report.mkdir()
    (house.folder.report / "report.html").write_text("<p>β</p>")


def test_a_server_holds_what_a_file_holds(house: House, server: Server) -> None:
    fill(house)
    report = house.mirror(server.uri)
    assert report.view.startswith(f"{server.uri}/#/experiments/")
    over_http = dump(server.uri, house.folder.experiment)
    house.mirror()
    assert over_http == dump(f"sqlite:///{house.database}", house.folder.experiment)
    again = house.mirror(server.uri)
    assert (again.created, again.updated, again.rows, again.unchanged) == (0, 0, 0, 4)
    (attempt,) = house.folder.cell(house.cells[0]).attempts()
    grow(attempt, [6, 7])
    assert house.mirror(server.uri).rows == 2 * 3


def test_a_server_killed_in_the_middle_is_completed_and_nothing_doubled(
    make_house: Callable[..., House],
    tmp_path: Path,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from mlflow.tracking import MlflowClient

    house = make_house(tmp_path / "runs", name="cut")
    fill(house)
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
    assert completed == dump(f"sqlite:///{house.database}", house.folder.experiment)


@pytest.mark.browser
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
