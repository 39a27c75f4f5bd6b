"""The page in a real browser: it draws, obeys its controls, fetches nothing, fits every screen."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dashboards import html
from orchestrator.compare import compare
from orchestrator.report import report

pytestmark = [pytest.mark.browser, pytest.mark.slow]

CHROMIUM = shutil.which("chromium")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update",
         "--disable-sync"]  # fmt: skip
BETAS = (0.1, 1.0)
KINDS = ("k1.reward", "k3.loss", "k1.loss")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("NOT TESTED: there is no chromium on this machine to open the report in")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def page_file(synthetic: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    done = synthetic.grid({"none": [0.9, 0.91]}, metrics={"eval/accuracy_predicted": 0.9})
    for beta in BETAS:
        for kl in KINDS:
            wild = kl == "k1.loss" and beta == 1.0
            for seed, shift in enumerate((0.0, 0.02)):
                done += synthetic.run(
                    kl, beta, seed, accuracy=0.05 if wild else 0.85 - 0.3 * beta + shift,
                    outcome=synthetic.collapsed if wild else None,
                )  # fmt: skip
    done += synthetic.grid(
        {"k1.reward": [0.5, 0.6]}, study="async10", staleness=10, model="qwen3-4b"
    )
    done += synthetic.run("k3.reward", 0.1, state="failed", progress=0.2)
    failed = done.records[-1].cell.id
    spec = synthetic.spec(
        {"wins": "eval/in_domain/mean[kl=k1.reward] > eval/in_domain/mean[kl=k3.loss]",
         "theory": "eval/accuracy_in_domain[kl=none] ~ predicted +- 0.2"},
        question="Is <script>document.title='owned'</script> & 'β' harmless?",
    )  # fmt: skip
    comparison = compare(spec, done.records, done.scores)
    told = report(comparison, done.records, done.scores, spec,
                  last_lines={failed: "<script>document.title='owned'</script>"})  # fmt: skip
    path = tmp_path_factory.mktemp("a report with 'quotes' & ünïcode") / "report #1.html"
    path.write_text(html(told), encoding="utf-8")
    return path


class Opened:
    """A page, what it said on its console, and what it asked the network for."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(url)
        self.ready()

    def ready(self) -> None:
        self.page.wait_for_selector("html[data-ready=yes]", state="attached", timeout=60_000)

    def choose(self, name: str, value: str) -> None:
        self.page.select_option(f"select[name={name}]", value)
        self.ready()

    def names(self, figure: str) -> list[str]:
        return list(self.page.locator(f"#figure-{figure} .panel h3").all_inner_texts())

    def traces(self, figure: str, panel: int = 0) -> list[dict[str, Any]]:
        """What Plotly was given, read back from the page."""
        plot = f"[...document.querySelectorAll('#figure-{figure} .plot')][{panel}]"
        found: list[dict[str, Any]] = self.page.evaluate(
            f"{plot}.data.map(t => ({{name: t.name, x: t.x, y: t.y, fill: t.fill, mode: t.mode}}))"
        )
        return found

    def fits(self) -> bool:
        script = "document.documentElement.scrollWidth <= window.innerWidth"
        return bool(self.page.evaluate(script))


@pytest.fixture
def opened(browser: Any, page_file: Path) -> Iterator[Opened]:
    found = Opened(browser, page_file.as_uri(), viewport={"width": 1280, "height": 900})
    yield found
    found.context.close()


def test_it_draws_says_nothing_and_asks_for_nothing(opened: Opened, page_file: Path) -> None:
    assert opened.said == []
    assert opened.asked == [page_file.as_uri()]
    assert opened.names("curves") == ["k1.reward", "k3.loss", "k1.loss", "k3.reward"]
    assert opened.names("finals") == ["in-domain accuracy", "out-of-domain accuracy"]
    plots = opened.page.locator(".plot").count()
    assert opened.page.locator(".plot .main-svg .xaxislayer-above").count() == plots >= 9
    assert opened.page.locator(".waiting").count() == 0
    assert opened.fits()


def test_what_a_spec_or_a_log_says_cannot_run(opened: Opened) -> None:
    assert "owned" not in opened.page.title().split(":")[0]
    assert opened.page.locator("h1").inner_text().startswith("Is <script>document.title")
    assert "<script>" in opened.page.locator("#failures pre").first.text_content()


def test_curves_hold_the_data(opened: Opened) -> None:
    means = [t for t in opened.traces("curves") if t["mode"] == "lines" and t["name"]]
    assert [t["name"] for t in means] == ["no KL", "k1.reward β=0.1", "k1.reward β=1"]
    assert means[0]["x"] == [0, 20, 40, 60, 80, 100]
    assert means[1]["y"][0] == pytest.approx(0.3)
    assert len([t for t in opened.traces("curves") if t["fill"] == "tonexty"]) == 3
    wild = opened.traces("curves", panel=2)
    assert [t["mode"] for t in wild].count("markers") == 1, "a cross marks the collapse"


def test_dots_hold_the_data(opened: Opened) -> None:
    shown = {t["y"][0]: t["x"][0] for t in opened.traces("finals")[:-1]}
    assert shown["k1.reward β=1"] == pytest.approx(0.56)
    assert shown["none"] == pytest.approx(0.905)
    assert len(opened.traces("finals")[-1]["x"]) == 14, "one small mark a seed"


def test_filters(opened: Opened) -> None:
    opened.choose("beta", "1")
    names = {t["name"] for t in opened.traces("curves") if t["name"]}
    assert names == {"no KL", "k1.reward β=1"}
    opened.choose("beta", "all")
    opened.choose("panels", "beta")
    assert opened.names("curves") == ["β 0.1", "β 1"]
    opened.choose("study", "async10")
    assert opened.names("finals")
    assert opened.page.locator("select[name=setting]").input_value() == "qwen3-4b"
    assert len(opened.traces("finals")) == 2
    assert opened.said == []


def test_measure_scale_seeds_and_tasks(opened: Opened) -> None:
    opened.choose("metric", "train/kl_reference")
    axis = "document.querySelector('#figure-curves .plot').layout.yaxis.type"
    assert opened.page.evaluate(axis) == "linear"
    opened.page.locator("#figure-curves input[name=log]").check()
    opened.ready()
    assert opened.page.evaluate(axis) == "log"
    opened.page.locator("#filters input[name=seeds]").check()
    opened.ready()
    assert "k1.reward β=0.1, seed 1" in {t["name"] for t in opened.traces("curves")}
    opened.page.locator("#figure-finals input[name=tasks]").check()
    opened.ready()
    assert len(opened.names("finals")) == 5
    assert opened.said == []


def test_the_keyboard_reaches_and_keeps_every_control(opened: Opened) -> None:
    opened.page.locator("select[name=beta]").focus()
    opened.page.keyboard.press("ArrowDown")
    opened.ready()
    assert opened.page.evaluate("document.activeElement.name") == "beta"
    assert opened.page.locator("select[name=beta]").input_value() == "0.1"
    opened.page.keyboard.press("Tab")
    opened.page.keyboard.press("Space")
    opened.ready()
    assert opened.page.evaluate("document.activeElement.name") == "seeds"
    assert opened.page.evaluate("document.activeElement.checked") is True


def test_rows_are_found(opened: Opened) -> None:
    table = opened.page.locator("#provenance details.table")
    table.locator("summary").click()
    table.locator("input").fill("K1.loss COLLAPSED")
    assert table.locator(".count").inner_text() == "2 of 17 rows"
    assert table.locator("tbody tr:visible").count() == 2


def test_dark(browser: Any, page_file: Path) -> None:
    found = Opened(browser, page_file.as_uri(), color_scheme="dark")
    ground = found.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(20, 23, 26)"
    text = "document.querySelector('.plot').layout.font.color"
    assert found.page.evaluate(text) == "#eceef0"
    found.page.emulate_media(color_scheme="light")
    found.page.wait_for_selector("html[data-ready=no]", state="attached")
    found.ready()
    assert found.page.evaluate(text) == "#16191d"
    assert found.said == []
    found.context.close()


@pytest.mark.parametrize("width", [320, 390, 768])
def test_narrow_screens_scroll_one_way(browser: Any, page_file: Path, width: int) -> None:
    found = Opened(browser, page_file.as_uri(), viewport={"width": width, "height": 800})
    assert found.fits()
    assert found.page.locator(".plot .main-svg").count() > 9
    found.context.close()


def test_in_a_sandboxed_frame(browser: Any, page_file: Path, tmp_path: Path) -> None:
    frame = tmp_path / "preview.html"
    frame.write_text(
        f'<iframe sandbox="allow-scripts" src="{page_file.as_uri()}" width=1000></iframe>'
    )
    context = browser.new_context()
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(frame.as_uri())
    inside = page.frames[1]
    inside.wait_for_selector("html[data-ready=yes]", state="attached", timeout=60_000)
    assert inside.locator(".plot .main-svg").count() > 9
    assert said == []
    context.close()


def test_printed(opened: Opened) -> None:
    printed = opened.page.pdf(format="A4")
    assert printed.startswith(b"%PDF")
    opened.page.emulate_media(media="print", color_scheme="dark")
    assert opened.page.locator("nav").is_hidden()
    ground = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(255, 255, 255)"


def test_without_javascript_the_tables_are_there(browser: Any, page_file: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(page_file.as_uri())
    assert page.locator(".waiting").first.is_visible()
    assert page.locator(".card").count() == 2
    assert page.locator("#collapse table").count() == 2
    context.close()
