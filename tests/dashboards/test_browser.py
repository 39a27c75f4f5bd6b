"""The page in a real browser: it draws, obeys its controls, fetches nothing, fits every screen."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dashboards import html
from orchestrator.analysis.compare import compare
from orchestrator.evaluate import ScoredBaseline
from orchestrator.records import (
    Baseline,
    EvaluationSpec,
    Published,
    PublishedFigure,
    PublishedNumber,
    PublishedPanel,
)
from orchestrator.report import Context, Report, report
from orchestrator.report.results import phase_section
from tests.golden.report import libraries
from tests.test_report import reported

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.long(240)]

BETAS = (0.1, 1.0)
KINDS = ("k1.reward", "k3.loss", "k1.loss")
AS_OPENED: dict[str, str | bool] = {
    "study": "onpolicy",
    "backend": "all",
    "kl": "all",
    "group": "none",
    "beta": "all",
    "seeds": "mean",
    "panels": "kl",
    "metric": "eval/accuracy_in_domain",
    "log": False,
    "smooth": False,
    "tasks": False,
}
CHOOSE = """values => { for (const [name, value] of values) {
  const node = document.querySelector(`[name="${name}"]`);
  if (!node) continue;
  if (node.type === "checkbox") { if (node.checked !== value) node.click(); }
  else if (node.value !== value) { node.value = value; node.dispatchEvent(new Event("change")); }
} }"""
SCRIPT = "<script>document.title='owned'</script>"
HOSTILE = f"{SCRIPT}'\"&"
DRAWN = """plots => plots.flatMap((plot) => {
  const marks = [];
  const walk = (mark) => (mark.items || []).forEach((item) => {
    if (mark.marktype === "group") (item.items || []).forEach(walk);
    else if (mark.role === "mark") {
      const name = mark.name.replace(/_marks$/, "");
      marks.push({ mark: name, x: item.x, y: item.y, datum: item.datum || {} });
    } else if (item.text !== undefined) {
      marks.push({ mark: mark.role, text: String(item.text), datum: {} });
    }
  });
  walk(plot.drawn.view.scenegraph().root);
  return marks;
})"""
"""What stands in the scenes that Vega drew: marks with their rows, and texts."""
PANELS = {
    "finals": 2,
    "curves": 4,
    "reference": 12,
    "gradients": 4,
    "staleness": 4,
    "phases": 1,
    "fig-1": 4,
    "fig-2": 4,
}
"""Figures of the first study and setting, with their panels."""


@pytest.fixture(scope="module")
def told(synthetic: Any) -> Report:
    done = synthetic.grid({"none": [0.9, 0.91]}, metrics={"eval/accuracy_predicted": 0.9})
    for beta in BETAS:
        for kl in KINDS:
            wild = kl == "k1.loss" and beta == 1.0
            for seed, shift in enumerate((0.0, 0.02)):
                done += synthetic.run(
                    kl,
                    beta,
                    seed,
                    accuracy=0.05 if wild else 0.85 - 0.3 * beta + shift,
                    outcome=synthetic.collapsed if wild else None,
                    metrics={"train/beta_effective": beta / 2},
                )
    done += synthetic.grid(
        {"k1.reward": [0.5, 0.6]}, study="async10", staleness=10, model="qwen3-4b"
    )
    done += synthetic.grid(
        {"k1.reward": [0.4, 0.5]},
        study="async10",
        backend="skyrl",
        staleness=10,
        model="qwen3-4b",
        micro=False,
    )
    done += synthetic.run("k3.reward", 0.1, state="failed", progress=0.2)
    failed = done.records[-1].cell.id
    claim = "eval/in_domain/mean[kl=k1.reward] > eval/in_domain/mean[kl=k3.loss]"
    baseline = Baseline(model="qwen2.5-7b")
    spec = synthetic.spec(
        {"wins": claim, "theory": "eval/accuracy_in_domain[kl=none] ~ predicted +- 0.2"},
        question=f"Is {SCRIPT} & 'β' harmless?",
        evaluation=EvaluationSpec(baselines=(baseline,)),
        published=Published(
            source="A paper",
            numbers=(PublishedNumber(name="one", claim=claim, relative_improvement=0.06),),
            figures=(
                PublishedFigure(figure="Fig. 1", title="Bias", shows=SCRIPT, laboratory=True),
                PublishedFigure(
                    figure="Fig. 2",
                    title="k1 in the loss",
                    shows="It collapses.",
                    panels=tuple(
                        PublishedPanel(
                            title="Qwen", study="onpolicy", where=("kl=k1.loss",), metrics=metrics
                        )
                        for metrics in (("eval/accuracy_in_domain",), ("tasks",))
                    ),
                ),
            ),
        ),
    )
    base = tuple(s.model_copy(update={"cell_id": "base", "value": 0.3}) for s in done.scores[:6])
    context = Context(
        baselines=[ScoredBaseline(baseline, "base", base, SCRIPT)],
        sides=[libraries(synthetic)],
    )
    comparison = compare(spec, done.records, done.scores)
    mapped = compare(spec, mappable(synthetic).records, [])
    phases = phase_section(mapped)
    return report(
        comparison,
        done.records,
        done.scores,
        spec,
        context=context,
        last_lines={failed: "x" * 10_000 + SCRIPT},
        sections=[phases],
    )


def mappable(synthetic: Any) -> Any:
    done = synthetic.none
    for staleness in (0, 10):
        for beta in BETAS:
            outcome = synthetic.collapsed if staleness and beta == 1 else None
            done += synthetic.run("k1.loss", beta, staleness=staleness, outcome=outcome)
    return done


@pytest.fixture(scope="module")
def page_file(told: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
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
        # What is folded is drawn when it is opened.
        self.page.evaluate("document.querySelectorAll('#details').forEach((d) => d.open = true)")
        self.page.wait_for_timeout(300)
        self.ready()

    def ready(self) -> None:
        self.page.wait_for_selector("html[data-ready=yes]", state="attached", timeout=60_000)

    def choose(self, **values: str | bool) -> None:
        """Sets controls one after the other, then waits until all is drawn."""
        self.page.evaluate(CHOOSE, list(values.items()))
        self.ready()

    def drawn(self, figure: str) -> list[dict[str, Any]]:
        """What Vega drew, read back from its scenes."""
        plots: list[dict[str, Any]] = self.page.locator(f"#figure-{figure} .plot").evaluate_all(
            DRAWN
        )
        return plots

    def names(self, figure: str) -> list[str]:
        """Titles of the panels, from above."""
        heads = list(self.page.locator(f"#figure-{figure} .panel h3").all_inner_texts())
        facets = self.facets(figure)
        asked = self.page.locator(f"#figure-{figure} .plot").evaluate_all(
            "plots => plots.flatMap(p => [...new Set(p.rows.map(r => r.panel).filter(Boolean))])"
        )
        assert sorted(facets) == sorted(asked)
        return asked or heads

    def facets(self, figure: str) -> list[str]:
        """Titles of the panels of facets, without the scale that each drawing names."""
        titles = [d["text"] for d in self.drawn(figure) if d["mark"] == "title-text"]
        return [title for title in titles if not title.startswith("micro policy for")]

    def rows(self, figure: str, mark: str, panel: str = "") -> list[dict[str, Any]]:
        """The rows that marks of this name were drawn of."""
        found = [d["datum"] for d in self.drawn(figure) if d["mark"] == mark]
        return [row for row in found if not panel or row["panel"] == panel]

    def curves(self, panel: str, key: str = "value", mark: str = "curve") -> dict[str, list[float]]:
        """Name -> what is drawn of it in a panel of learning curves."""
        found: dict[str, list[float]] = {}
        for row in sorted(self.rows("curves", mark, panel), key=lambda row: row["step"]):
            found.setdefault(row["name"], []).append(row[key])
        return found

    def fits(self) -> bool:
        script = "document.documentElement.scrollWidth <= window.innerWidth"
        return bool(self.page.evaluate(script))


@pytest.fixture(scope="module")
def untouched(browser: Any, page_file: Path) -> Iterator[Opened]:
    """The page as it opens, for tests that only look."""
    found = Opened(browser, page_file.as_uri(), viewport={"width": 1280, "height": 900})
    yield found
    found.context.close()


@pytest.fixture
def opened(untouched: Opened) -> Iterator[Opened]:
    """The same page, for tests that use its controls, which are set back."""
    yield untouched
    untouched.choose(**AS_OPENED)


@pytest.fixture(scope="module")
def dark(browser: Any, page_file: Path) -> Iterator[Opened]:
    found = Opened(
        browser, page_file.as_uri(), color_scheme="dark", viewport={"width": 1280, "height": 900}
    )
    yield found
    found.context.close()


@pytest.fixture(scope="module")
def phone(browser: Any, page_file: Path) -> Iterator[Opened]:
    found = Opened(browser, page_file.as_uri(), viewport={"width": 320, "height": 800})
    yield found
    found.context.close()


def test_it_draws_says_nothing_and_asks_for_nothing(untouched: Opened, page_file: Path) -> None:
    assert untouched.said == []
    assert untouched.asked == [page_file.as_uri()]
    assert untouched.names("curves") == ["k1.reward", "k3.loss", "k1.loss", "k3.reward"]
    assert untouched.names("finals") == ["in-domain accuracy", "out-of-domain accuracy"]
    for figure, count in PANELS.items():
        drawn = untouched.drawn(figure)
        facets = len(untouched.facets(figure))
        plots = untouched.page.locator(f"#figure-{figure} .plot").count()
        assert count in (facets, plots, facets + plots - 1), figure
        assert any(d["datum"] for d in drawn), f"{figure}: marks are drawn"
    assert untouched.page.locator(".waiting").count() == 0
    assert untouched.fits()


def answers_within(opened: Opened, most: int) -> None:
    """The figure of claims is on the first so many pixels, below the answer in words."""
    opened.page.evaluate("scrollTo(0, 0)")
    bottom = "document.querySelector('#claims svg.effect').getBoundingClientRect().bottom"
    assert 0 < opened.page.evaluate(bottom) < most
    assert opened.page.locator("#answer .lead").first.inner_text().startswith("Stability")
    claims = opened.page.locator("#claims").evaluate("e => e.getBoundingClientRect().height")
    assert claims < 900, "the claims fit a screen"
    assert opened.fits()


def test_a_desktops_first_screen_answers(untouched: Opened) -> None:
    answers_within(untouched, 700)


def test_curves_hold_the_data(untouched: Opened, told: Report) -> None:
    means = untouched.curves("k1.reward")
    assert list(means) == ["no KL", "k1.reward β=0.1", "k1.reward β=1"]
    steps = untouched.curves("k1.reward", "step")
    assert steps["no KL"] == [0, 20, 40, 60, 80, 100]
    (plain,) = [
        c
        for c in told.data["configurations"]
        if c["name"] == "k1.reward β=0.1" and c["study"] == "onpolicy"
    ]
    curve = plain["curves"]["eval/accuracy_in_domain"]
    assert means[plain["name"]] == pytest.approx(curve["m"], abs=0.005)
    assert untouched.curves("k1.reward", "low", "band") == {}, "no band over two seeds"
    seeds = untouched.curves("k1.reward", mark="seed")
    assert len(seeds) == 6, "both seeds of each line"
    assert seeds[f"{plain['name']}, seed 1"] == pytest.approx(curve["s"]["1"], abs=0.005)
    (cross,) = untouched.rows("curves", "collapsed", "k1.loss")
    assert cross["name"] == "k1.loss β=1", "a cross marks the collapse"
    fallen = untouched.rows("curves", "beyond", "k1.loss")
    assert [row["name"] for row in fallen] == ["k1.loss β=1"], (
        "it leaves the axis, and a mark says so"
    )
    (deep,) = untouched.rows("curves", "depth", "k1.loss")
    assert deep["depth"] == f"down to {deep['value']:.3g}"
    (collapsed,) = [c for c in told.data["configurations"] if c["name"] == "k1.loss β=1"]
    true = collapsed["curves"]["eval/accuracy_in_domain"]["m"]
    assert untouched.curves("k1.loss")["k1.loss β=1"] == pytest.approx(true), "no value is moved"
    legend = [d["text"] for d in untouched.drawn("curves") if d["mark"] == "legend-label"]
    assert legend == ["no KL", "β 0.1", "β 1"]


OFF = """plots => plots.flatMap((plot) => {
  const off = [], view = plot.drawn.view;
  const walk = (mark) => (mark.items || []).forEach((item) => {
    if (mark.marktype === "group") {
      (item.items || []).forEach(walk);
    } else if (/^(curve|seed|dot|seeds|star)_marks$/.test(mark.name || "")) {
      const { name, value, each, step, x: at } = item.datum;
      const shown = mark.name === "seeds_marks" ? each : value;
      if (shown === null || shown === undefined) return;
      const along = step !== undefined || at !== undefined;
      const place = along ? item.y : item.x, right = view.scale(along ? "y" : "x")(shown);
      off.push(Math.abs(right - place) > 0.7 ? [mark.name, name, shown, right, place] : null);
    }
  });
  walk(view.scenegraph().root);
  return off;
})"""
"""Of each mark of a value, None, or what is off: its name, and where it should and does stand."""


def test_no_mark_stands_off_its_value(untouched: Opened) -> None:
    """Where Vega drew a value is where its own axis has that value, also of collapsed runs."""
    for figure in ("curves", "finals", "distance"):
        looked = untouched.page.locator(f"#figure-{figure} .plot").evaluate_all(OFF)
        assert looked, figure
        assert [each for each in looked if each] == [], figure
    mark = "plots => plots.map(p => p.drawn.vgSpec.title && p.drawn.vgSpec.title.text)"
    said = untouched.page.locator(".plot").evaluate_all(mark)
    assert {str(text).startswith("micro policy for ") for text in said} == {True}, "cut out, too"


def test_dots_hold_the_data(untouched: Opened) -> None:
    inside = "#figure-finals .plot"
    first = untouched.page.locator(inside).evaluate_all(f"plots => ({DRAWN})([plots[0]])")
    shown = {d["datum"]["name"]: d for d in first if d["mark"] == "dot"}
    assert shown["k1.reward β=1"]["datum"]["value"] == pytest.approx(0.56)
    assert shown["none"]["datum"]["value"] == pytest.approx(0.905)
    assert shown["none"]["x"] > shown["k1.reward β=1"]["x"]
    assert shown["none"]["y"] < shown["k1.reward β=0.1"]["y"], "the first is on top"
    (star,) = [d["datum"] for d in first if d["mark"] == "star"]
    assert (star["name"], star["value"]) == ("base model", 0.3)
    assert len([d for d in first if d["mark"] == "seeds"]) == 12, "a mark a seed that trained"


def test_the_pointer_reads_values(opened: Opened) -> None:
    plot = opened.page.locator("#figure-curves .plot canvas")
    plot.scroll_into_view_if_needed()
    at = """plot => {
      const places = [], view = plot.parentElement.drawn.view, [left, top] = view.origin();
      const walk = (mark, x, y) => (mark.items || []).forEach((item) => {
        const [right, down] = [x + (item.x || 0), y + (item.y || 0)];
        if (mark.marktype === "group") (item.items || []).forEach((m) => walk(m, right, down));
        else if (mark.name === "reading_marks") places.push([right, down]);
      });
      walk(view.scenegraph().root, left, top);
      return places.pop();
    }"""
    x, y = plot.evaluate(at)
    box = plot.bounding_box()
    opened.page.mouse.move(box["x"] + x, box["y"] + y)
    shown = opened.page.locator("#vg-tooltip-element.visible")
    shown.wait_for()
    assert "train step" in shown.inner_text()
    assert "95 % interval" in shown.inner_text()
    opened.page.mouse.click(box["x"] + x, box["y"] + y)
    assert "rests on cell" in opened.page.locator("#figure-curves .from").inner_text()
    opened.page.mouse.move(0, 0)


def test_every_axis_of_a_spec_is_a_filter(browser: Any, synthetic: Any, tmp_path: Path) -> None:
    """A spec's own axes narrow the choice of a setting, each by its name; a value is inert."""
    done = synthetic.none
    for seed, (estimator, note, accuracy) in enumerate(
        [("rloo", "none", 0.8), ("grpo", "none", 0.6), ("grpo", HOSTILE, 0.4)]
    ):
        axes = {"advantage.estimator": estimator, "note": note}
        done += synthetic.run(seed=seed, accuracy=accuracy, axes=axes)
    path = tmp_path / "axes.html"
    path.write_text(html(reported(synthetic, done, {})), encoding="utf-8")
    opened = Opened(browser, path.as_uri(), viewport={"width": 1280, "height": 900})
    settings = opened.page.locator("select[name=setting] option")
    try:
        assert settings.count() == 3
        opened.choose(**{"axis advantage.estimator": "grpo"})
        assert settings.count() == 2
        opened.choose(**{"axis note": HOSTILE})
        assert SCRIPT in settings.first.inner_text()
        rows = opened.rows("finals", "dot")
        assert len(rows) == 2, "one configuration, in and out of domain"
        assert rows[0]["value"] == pytest.approx(0.4)
        assert opened.said == []
        assert opened.page.title() != "owned"
        assert opened.page.locator("figure script, td script").count() == 0
    finally:
        opened.context.close()


def test_filters(opened: Opened) -> None:
    opened.choose(beta="1")
    assert set(opened.curves("k1.reward")) == {"no KL", "k1.reward β=1"}
    opened.choose(beta="all", panels="beta")
    assert opened.names("curves") == ["β 0.1", "β 1"]
    assert opened.page.locator("select[name=backend]").count() == 0, "one backend: no choice"
    assert (
        "async10: Asynchronous (Fig. 2)" in opened.page.locator("select[name=study]").inner_text()
    )
    opened.choose(study="async10", backend="skyrl")
    assert opened.page.locator("select[name=setting] option").count() == 1
    assert [r["value"] for r in opened.rows("finals", "dot")] == pytest.approx([0.45, 0.4])
    opened.choose(seeds="1")
    assert list(opened.curves("β 0.1")) == ["k1.reward β=0.1, seed 1"]
    assert opened.said == []


def test_a_choice_stands_in_the_address(browser: Any, opened: Opened, page_file: Path) -> None:
    opened.choose(study="async10", metric="train/kl_reference", group="backend", log=True)
    names = opened.names("curves")
    assert names == ["backend verl", "backend skyrl"]
    rows = {row["name"] for row in opened.rows("finals", "dot")}
    assert rows == {"verl: k1.reward β=0.1", "skyrl: k1.reward β=0.1"}
    address = opened.page.evaluate("location.href")
    other = Opened(browser, address, viewport={"width": 1280, "height": 900})
    try:
        assert other.names("curves") == names
        assert other.page.locator("select[name=metric]").input_value() == "train/kl_reference"
        assert other.page.locator("#figure-curves input[name=log]").is_checked()
    finally:
        other.context.close()
    opened.choose(**AS_OPENED)
    assert "#?" not in opened.page.evaluate("location.href"), "as opened needs no words"


def test_a_curve_that_an_unfinished_seed_cuts_is_marked(opened: Opened) -> None:
    (ring,) = opened.rows("curves", "cut")
    assert (ring["panel"], ring["step"]) == ("k3.reward", 20)
    assert ring["cut"] == "step 20 of 100: seed 0 is failed"


def test_nothing_is_smoothed_unless_asked(opened: Opened) -> None:
    box = opened.page.locator("#figure-curves input[name=smooth]")
    assert not box.is_checked()
    before = opened.curves("k1.reward")["no KL"]
    opened.choose(smooth=True)
    after = opened.curves("k1.reward")["no KL, smoothed"]
    assert after[2] == pytest.approx(sum(before[:5]) / 5)
    measured = opened.curves("k1.reward", "raw", "measured")["no KL, smoothed"]
    assert measured == before, "what was measured stays in sight"


def test_every_number_is_one_click_from_its_cells(opened: Opened, told: Report) -> None:
    plot = opened.page.locator("#figure-finals .plot").first
    plot.evaluate("p => p.dispatchEvent(new CustomEvent('wherefrom', {bubbles: true, detail: 0}))")
    box = opened.page.locator("#figure-finals .from")
    assert "rests on cell" in box.inner_text()
    link = box.locator("a").first
    target = str(link.get_attribute("href"))
    link.click()
    row = opened.page.locator(f"tr{target}")
    assert row.is_visible(), "the folded table is opened"
    assert opened.page.evaluate("document.activeElement.id") == target[1:]
    assert row.locator("td").first.inner_text() == target[6:]
    opened.page.locator("#finals details.table summary").click()
    opened.page.locator("#finals details.table td a").first.click()
    assert opened.page.evaluate("document.activeElement.tagName") == "TR"


def test_measure_scale_seeds_and_tasks(opened: Opened) -> None:
    opened.choose(metric="train/kl_reference")
    axis = "document.querySelector('#figure-curves .plot').drawn.view.scale('y').type"
    assert opened.page.evaluate(axis) == "linear"
    opened.choose(log=True, seeds="each", tasks=True)
    assert opened.page.evaluate(axis) == "log"
    assert "k1.reward β=0.1, seed 1" in opened.curves("k1.reward")
    assert opened.page.locator("#figure-finals .plot").count() == 5
    assert opened.said == []


def test_the_keyboard_reaches_and_keeps_every_control(opened: Opened) -> None:
    opened.page.locator("select[name=beta]").focus()
    opened.page.keyboard.press("ArrowDown")
    opened.ready()
    assert opened.page.evaluate("document.activeElement.name") == "beta"
    assert opened.page.locator("select[name=beta]").input_value() == "0.1"
    opened.page.locator("#figure-curves input[name=log]").focus()
    opened.page.keyboard.press("Space")
    opened.ready()
    assert opened.page.evaluate("document.activeElement.name") == "log"
    assert opened.page.evaluate("document.activeElement.checked") is True


@pytest.mark.parametrize(("ending", "title"), [("tex", "LaTeX"), ("csv", "CSV")])
def test_a_table_of_results_is_a_file(opened: Opened, ending: str, title: str) -> None:
    with opened.page.expect_download() as waiting:
        opened.page.locator(".table.exported button", has_text=title).first.click()
    assert waiting.value.suggested_filename == f"onpolicy-qwen2.5-7b.{ending}"
    text = waiting.value.path().read_text(encoding="utf-8")
    lines = text.splitlines()
    if ending == "csv":
        assert lines[0].startswith('"KL","trained","micro_sort","micro_copy","micro_reverse"')
        assert lines[1].startswith('"base model","","0.300"')
        return
    assert lines[0] == "\\begin{tabular}{lcccccc}"
    assert any(line.startswith("k1.reward $\\beta$=0.1 & 2 of 2 & 0.830 $\\pm$ ") for line in lines)


def test_rows_are_found(opened: Opened) -> None:
    table = opened.page.locator("#provenance details.table")
    table.evaluate("table => { table.open = true; }")
    table.locator("input").fill("K1.loss COLLAPSED")
    assert table.locator(".count").inner_text() == "2 of 19 rows"
    assert table.locator("tbody tr:visible").count() == 2


GROUND = "getComputedStyle(document.body).backgroundColor"
TEXT = "document.querySelector('.plot').drawn.vgSpec.config.axis.labelColor"


def test_dark(dark: Opened) -> None:
    assert dark.page.evaluate(GROUND) == "rgb(20, 23, 26)"
    assert dark.page.evaluate(TEXT) == "#eceef0"
    dark.page.emulate_media(color_scheme="light")
    dark.page.wait_for_selector("html[data-ready=no]", state="attached")
    dark.ready()
    assert dark.page.evaluate(TEXT) == "#16191d"
    dark.page.emulate_media(color_scheme="dark")
    dark.page.wait_for_selector("html[data-ready=no]", state="attached")
    dark.ready()
    assert dark.said == []


def test_narrow_screens_scroll_one_way(phone: Opened) -> None:
    """And the answer is one swipe away."""
    for width in (320, 390, 768):
        phone.page.set_viewport_size({"width": width, "height": 844})
        assert phone.fits(), width
        if width == 390:
            answers_within(phone, 2 * 844)
            ends = "maps => maps.map((m) => m.getBoundingClientRect().right)"
            rights = phone.page.locator(".map").evaluate_all(ends)
            assert max(rights) <= 390, "the largest β is in sight"
    phone.ready()  # a narrower plot is drawn anew
    assert phone.page.locator(".plot canvas").count() > 9
    assert phone.said == []


CUT = """plots => plots.flatMap((plot) => {
  const cut = [], canvas = plot.querySelector("canvas").getBoundingClientRect();
  if (canvas.width > plot.clientWidth + 1) cut.push(`${canvas.width} px`);
  const walk = (mark) => (mark.items || []).forEach((item) => {
    if (mark.marktype === "group") (item.items || []).forEach(walk);
    else if (mark.role === "axis-label" && item.limit && item.bounds.width() > item.limit) {
      cut.push(item.text);
    }
  });
  walk(plot.drawn.view.scenegraph().root);
  return cut;
})"""
"""Labels that are longer than their limit, and pictures that are wider than their place."""


def test_no_label_of_a_figure_is_cut(untouched: Opened, phone: Opened) -> None:
    for opened in (untouched, phone):
        opened.ready()
        assert opened.page.locator(".ours .plot").count() > 2
        assert opened.page.locator(".plot").evaluate_all(CUT) == []


def test_before_printing_everything_is_drawn_on_white_and_fits_the_paper(dark: Opened) -> None:
    dark.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    plots = "[...document.querySelectorAll('.plot')]"
    assert dark.page.evaluate(f"{plots}.every(p => p.dataset.theme === 'print')"), "at once"
    colours = f"{plots}.map(p => p.drawn.vgSpec.config.axis.labelColor)"
    assert set(dark.page.evaluate(colours)) == {"#000000"}
    right = "p => p.querySelector('svg').getBoundingClientRect().right"
    wide = f"Math.max(...{plots}.map({right}))"
    assert dark.page.evaluate(wide) <= 700
    dark.page.evaluate("dispatchEvent(new Event('afterprint'))")
    dark.ready()
    assert dark.page.evaluate(TEXT) == "#eceef0"


def test_printed(phone: Opened) -> None:
    """Last on its page: it stays as it is on paper."""
    assert phone.page.pdf(format="A4").startswith(b"%PDF")
    phone.page.emulate_media(media="print", color_scheme="dark")
    assert phone.page.locator("nav").is_hidden()
    assert phone.page.evaluate(GROUND) == "rgb(255, 255, 255)"


def odd(synthetic: Any, which: str) -> Any:
    """Experiments that are not as they should be."""
    nan = dict.fromkeys(("eval/accuracy_in_domain", "train/reward_mean"), float("nan"))
    if which == "nothing finished":
        return synthetic.run(state="running", progress=0.1) + synthetic.run(seed=1, state="planned")
    if which == "no numbers":
        diverged = synthetic.collapsed.model_copy(update={"cause": "nan"})
        return synthetic.run(outcome=diverged, metrics=nan, scored=False)
    half = synthetic.run() + synthetic.run(seed=1, state="failed", progress=0.3)
    torn = [
        dataclasses.replace(r, metrics=(), faults=("line 7 of metrics.jsonl is cut",))
        for r in half.records
    ]
    return half._replace(records=torn, scores=[])


@pytest.mark.parametrize(
    ("which", "says"),
    [
        ("nothing finished", "No cell has finished yet"),
        ("no numbers", "collapsed (nan"),
        ("half written", "line 7 of metrics.jsonl is cut"),
    ],
)
def test_odd_experiments_are_readable_pages(
    browser: Any, synthetic: Any, tmp_path: Path, which: str, says: str
) -> None:
    claims = {"c": "eval/in_domain/mean[kl=none] > 0"}
    path = tmp_path / "page.html"
    told = reported(synthetic, odd(synthetic, which), claims)
    path.write_text(html(told), encoding="utf-8")
    found = Opened(browser, path.as_uri())
    assert found.said == []
    assert says in found.page.evaluate("document.body.textContent")
    assert found.fits()
    found.context.close()
