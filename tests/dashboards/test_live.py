"""The served page in a real browser: it renews itself and leaves the reader where they were."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import dashboards
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
from orchestrator.analysis.compare import compare
from orchestrator.report import report

pytestmark = [pytest.mark.browser, pytest.mark.slow]

WAIT = 60_000


class Growing:
    """An experiment that gets one more seed with each step."""

    def __init__(self, synthetic: Any) -> None:
        self._synthetic, self.seeds = synthetic, 1

    def look(self) -> BoardState:
        return BoardState(str(self.seeds), f"{2 * self.seeds} of 8 cells done", self.seeds < 4)

    def build(self) -> Page:
        made = self._synthetic
        done = made.grid({"k1.reward": [0.8] * self.seeds, "k3.loss": [0.7] * self.seeds})
        done += made.grid({"k1.reward": [0.8] * self.seeds}, study="async10", staleness=10)
        spec = made.spec()
        told = report(compare(spec, done.records, done.scores), done.records, done.scores, spec)
        return Page(dashboards.html(told, live=True).encode(), b"")


@pytest.fixture
def growing(synthetic: Any, monkeypatch: pytest.MonkeyPatch) -> Growing:
    monkeypatch.setattr(board_module, "LOOK_SECONDS", 0.05)
    return Growing(synthetic)


@pytest.fixture
def served(growing: Growing) -> Iterator[DashboardServer]:
    kept = Board(PageSource(growing.look, growing.build))
    with listen(DashboardSite(kept, dict, lambda name: name, new_token()), "127.0.0.1", 0) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield found
        found.shutdown()
        kept.close()


@pytest.fixture
def page(browser: Any, served: DashboardServer) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1100, "height": 700})
    opened = context.new_page()
    opened.said = []
    opened.on("console", lambda message: opened.said.append(message.text))
    opened.on("pageerror", lambda error: opened.said.append(str(error)))
    opened.goto(served.address)
    ready(opened)
    yield opened
    context.close()


def ready(page: Any) -> None:
    page.wait_for_selector("html[data-version][data-ready=yes]", state="attached", timeout=WAIT)


def version(page: Any) -> str:
    return str(page.evaluate("document.documentElement.dataset.version"))


def renewed(page: Any, before: str) -> None:
    page.wait_for_selector(
        f"html[data-version]:not([data-version='{before}'])[data-ready=yes]",
        state="attached",
        timeout=WAIT,
    )


def test_it_renews_itself_where_the_reader_is(
    page: Any, growing: Growing, served: DashboardServer
) -> None:
    assert page.url == f"http://127.0.0.1:{served.server_port}/", "the token is not in the address"
    before = version(page)
    page.select_option("select[name=study]", "async10")
    page.select_option("select[name=seeds]", "each")
    page.locator("#figure-curves input[name=log]").check()
    page.locator("#details > summary").click()
    page.locator("#provenance details summary").first.click()
    search = page.locator("#provenance input[type=search]").first
    search.fill("k1.reward")
    page.evaluate("document.getElementById('provenance').scrollIntoView()")
    where = page.evaluate("document.getElementById('provenance').getBoundingClientRect().top")
    assert "2 of 8" in page.locator("#live").inner_text()
    growing.seeds = 2
    renewed(page, before)
    page.get_by_text("Updated ").wait_for(timeout=WAIT)
    assert page.locator("select[name=study]").input_value() == "async10"
    assert page.locator("select[name=seeds]").input_value() == "each"
    assert page.locator("#figure-curves input[name=log]").is_checked()
    assert search.input_value() == "k1.reward"
    assert page.locator("#provenance details").first.get_attribute("open") is not None
    now = page.evaluate("document.getElementById('provenance').getBoundingClientRect().top")
    assert now == pytest.approx(where, abs=3)
    page.locator("#live").get_by_text("4 of 8").wait_for(timeout=WAIT)
    assert page.said == []


def test_it_can_be_paused(page: Any, growing: Growing) -> None:
    before = version(page)
    page.get_by_role("button", name="Pause updates").click()
    growing.seeds = 2
    newer = page.get_by_role("button", name="Show the newer page")
    newer.wait_for(timeout=WAIT)
    assert page.locator("#live [role=status]").inner_text() == "There is a newer page"
    assert version(page) == before
    newer.click()
    renewed(page, before)
    go_on = page.get_by_role("button", name="Go on updating")
    go_on.wait_for(timeout=WAIT)
    assert go_on.get_attribute("aria-pressed") == "true", "paused it stays"
    before, growing.seeds = version(page), 3
    newer.wait_for(timeout=WAIT)
    go_on.click()
    renewed(page, before)
    assert page.said == []


def test_a_server_that_went_leaves_the_page_as_it_is(page: Any) -> None:
    page.route("**/version", lambda route: route.abort())
    page.locator("#live").get_by_text("Not live").wait_for(timeout=WAIT)
    assert page.locator(".plot canvas").count() > 3


def test_it_has_no_faults_of_accessibility(page: Any) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    found = axe.Axe().run(page, context="#live")
    assert found.response["violations"] == []
