"""A large page: its curves and long tables are in blocks, and it shows what a small page shows."""

import base64
import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dashboards import html
from dashboards import page as blocks
from dashboards.page import packed_data
from orchestrator.analysis.compare import compare
from orchestrator.report import Report, report
from tests.dashboards.test_browser import AXE, SCRIPT, Opened

BLOCK = re.compile(r'<script type="application/gzip"(?: id="([^"]+)")?>([^<]+)</script>')
ALL_BLOCKS = 'script[type="application/gzip"]'


@pytest.fixture(scope="module")
def shown(synthetic: Any) -> Report:
    done = synthetic.none
    for study, model in (("onpolicy", "qwen2.5-7b"), ("async10", "qwen3-4b")):
        for kl, height in (("k1.reward", 0.8), ("k3.loss", 0.6), ("k1.loss", 0.4)):
            for beta in (0.1, 1.0):
                for seed in range(3):
                    done += synthetic.run(
                        kl,
                        beta,
                        seed,
                        accuracy=height - 0.1 * beta + 0.01 * seed,
                        study=study,
                        model=model,
                        axes={"note": SCRIPT if kl == "k1.loss" else "plain"},
                    )
    spec = synthetic.spec(
        {"wins": "eval/in_domain/mean[kl=k1.reward] > eval/in_domain/mean[kl=k3.loss]"}
    )
    return report(compare(spec, done.records, done.scores), done.records, done.scores, spec)


def large(shown: Report) -> str:
    """Return the page that a report of many more cells would have."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "MANY_VALUES", 1)
        patch.setattr(blocks, "VALUES_IN_BLOCK", 30)
        patch.setattr(blocks, "MANY_ROWS", 8)
        patch.setattr(blocks, "FIRST_ROWS", 3)
        return html(shown)


def texts(page: str) -> dict[str, str]:
    """Return id -> content of every block of a page."""
    return {
        id_ or f"unnamed {number}": gzip.decompress(base64.b64decode(packed)).decode()
        for number, (id_, packed) in enumerate(BLOCK.findall(page))
    }


def data_of(page: str) -> Any:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)
    return json.loads(text)


def test_a_small_page_has_no_block_and_equal_reports_give_equal_pages(shown: Report) -> None:
    assert not BLOCK.search(html(shown))
    assert large(shown) == large(shown)


def test_blocks_hold_all_curves_and_rows(shown: Report) -> None:
    small, _ = packed_data(shown)
    page = large(shown)
    data, contents = data_of(page), texts(page)
    named = [json.loads(text) for id_, text in contents.items() if id_.startswith("block-")]
    assert len(named) > 20
    by_number = dict(enumerate(named, 1))
    for at, (whole, closed) in enumerate(
        zip(small["configurations"], data["configurations"], strict=True)
    ):
        assert whole["curves"].keys() == closed["curves"].keys()
        for metric, number in closed["curves"].items():
            assert by_number[number]["metric"] == metric
            assert by_number[number]["curves"][str(at)] == whole["curves"][metric]
        for name, rows in small["tables"].items():
            own = [row for row in rows if row.get("at") == at]
            opened = by_number[closed["rows"]]["tables"].get(name, ())
            assert [row for row in opened if row["at"] == at] == own
    assert not any("at" in row for rows in data["tables"].values() for row in rows)


def test_rows_stand_outside_or_in_a_block_once(shown: Report) -> None:
    page = large(shown)
    rows = re.findall('<tr id="cell-([^"]+)"', html(shown))
    outside = re.findall('<tr id="cell-([^"]+)"', BLOCK.sub("", page))
    inside = re.findall('<tr id="cell-([^"]+)"', "".join(texts(page).values()))
    assert (len(outside), len(rows)) == (3, 36)
    assert outside + inside == rows


@pytest.fixture(scope="module")
def small_file(shown: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "page.html"
    path.write_text(html(shown), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def large_file(shown: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "page.html"
    path.write_text(large(shown), encoding="utf-8")
    return path


@pytest.fixture
def opened(browser: Any, large_file: Path) -> Iterator[Opened]:
    page = Opened(browser, large_file.as_uri(), viewport={"width": 1280, "height": 900})
    yield page
    page.context.close()


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.long(60)
class TestInABrowser:
    def test_it_draws_what_a_small_page_draws(
        self, browser: Any, opened: Opened, small_file: Path, large_file: Path
    ) -> None:
        small = Opened(browser, small_file.as_uri(), viewport={"width": 1280, "height": 900})
        every = len(BLOCK.findall(large_file.read_text(encoding="utf-8")))
        at_first = opened.page.locator(ALL_BLOCKS).count()
        assert every / 2 < at_first < every, "what nobody looks at stays closed"
        for choice in (
            {},
            {"study": "async10"},
            {"seeds": "each", "metric": "train/kl_reference"},
            {"group": "note"},
            {"panels": "beta", "beta": "1"},
        ):
            for page in (opened, small):
                page.choose(**choice)
            for figure in ("finals", "curves", "stability", "reference"):
                assert opened.drawn(figure) == small.drawn(figure), (choice, figure)
                assert opened.drawn(figure)
        assert opened.page.locator(ALL_BLOCKS).count() < at_first
        assert opened.said == []
        assert opened.asked == [large_file.as_uri()]
        small.context.close()

    def test_a_long_table_is_read_when_it_is_unfolded(self, opened: Opened) -> None:
        table = opened.page.locator("#provenance details.table")
        assert table.locator("tbody tr").count() == 3
        table.locator("summary").click()
        more = table.locator("button")
        more.wait_for()
        assert more.inner_text() == "Show 33 more of 33 further rows"
        more.click()
        assert table.locator("tbody tr").count() == 36
        assert more.is_hidden()
        table.locator("input").fill("k1.loss async10")
        # The page's policy refuses text as code, so that Playwright cannot wait for an expression.
        table.get_by_text("6 of 36 rows").wait_for()
        assert table.locator("tbody tr").count() == 6
        assert opened.said == []

    def test_a_link_to_a_row_that_is_in_a_block_shows_the_row(self, opened: Opened) -> None:
        links = opened.page.locator("#answer .card details").first
        links.locator("summary").click()
        opened.page.locator(".card a").nth(3).wait_for(state="attached")
        last = links.locator("a").last
        target = str(last.get_attribute("href"))
        assert opened.page.locator(f"tr{target}").count() == 0
        last.click()
        row = opened.page.locator(f"tr{target}")
        row.wait_for()
        assert opened.page.evaluate("document.activeElement.id") == target[1:]
        assert opened.page.locator("#provenance input").input_value() == target[6:]
        assert opened.said == []

    def test_texts_from_a_block_are_texts(self, opened: Opened) -> None:
        table = opened.page.locator("#finals details.table")
        table.locator("summary").click()
        table.locator("button").click()
        assert "<script>document.title" in str(table.locator("tbody").text_content())
        assert table.locator("tbody script").count() == 0
        assert "owned" not in opened.page.title()

    def test_axe_finds_nothing(self, opened: Opened) -> None:
        opened.page.evaluate(
            "document.querySelectorAll('details').forEach(d => { d.open = true; })"
        )
        opened.page.locator("#provenance button").wait_for()
        opened.page.evaluate(AXE)
        result = opened.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        assert [(v["id"], v["nodes"][0]["html"][:200]) for v in result["violations"]] == []

    def test_a_browser_that_cannot_open_blocks_says_so(
        self, browser: Any, large_file: Path
    ) -> None:
        context = browser.new_context()
        page = context.new_page()
        page.add_init_script("delete window.DecompressionStream")
        page.goto(large_file.as_uri())
        page.wait_for_selector("html[data-ready=yes]", state="attached", timeout=60_000)
        assert "A newer one can" in page.locator("#figure-curves").inner_text()
        assert page.locator("#claims .card").count() == 1
        context.close()

    def test_without_javascript_the_first_rows_are_there(
        self, browser: Any, large_file: Path
    ) -> None:
        context = browser.new_context(java_script_enabled=False)
        page = context.new_page()
        page.goto(large_file.as_uri())
        assert page.locator("#provenance tbody tr").count() == 3
        assert "orch report --format csv" in str(page.locator("#provenance").text_content())
        context.close()
