"""Write a report's figures as PNG and PDF files: the page's views with the rows of each setting."""

import re
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from textwrap import wrap
from typing import Any

from dashboards.page import axis_note, effect_drawing, effect_scales
from orchestrator.charts.files import (
    colored,
    completed,
    converted,
    sheet,
    svg_of,
    without_readings,
)
from orchestrator.charts.marks import ChartView, Rows
from orchestrator.charts.style import LIGHT, config
from orchestrator.files import write_bytes
from orchestrator.report import Report
from orchestrator.report.figures import METRIC, every_figure, rows_of, tables, views
from orchestrator.report.model import Figure

FORMATS = ("png", "pdf")
OF_SETTING = ("curves", "measures", "finals", "stability")
"""Kinds of figures with one picture per study and setting. Other figures have one picture."""
Drawn = tuple[str, str]
"""A file's name without its ending, and the picture as SVG."""


def pictures(report: Report | None, folder: Path) -> dict[str, tuple[str, ...]]:
    """Write a report's pictures to `folder`. Return figure id -> picture names without endings.

    Remove all other PNG and PDF files from the folder. Without a report, remove all of them.
    """
    written: dict[str, tuple[str, ...]] = {}
    if report is not None:
        page = one_page(report)
        if page is not None:
            written["claims"] = (_write("one-page", page, folder),)
        for figure in every_figure(report):
            drawn = draw_figure(figure, report)
            written[figure.id] = tuple(_write(name, svg, folder) for name, svg in drawn)
    kept = {f"{name}.{ending}" for each in written.values() for name in each for ending in FORMATS}
    for path in folder.glob("*"):
        if path.suffix[1:] in FORMATS and path.name not in kept:
            path.unlink()
    return written


def _write(name: str, svg: str, folder: Path) -> str:
    """Write one picture in every format. Return its name."""
    for ending in FORMATS:
        write_bytes(folder / f"{name}.{ending}", converted(svg, ending))
    return name


def draw_figure(figure: Figure, report: Report) -> Iterator[Drawn]:
    """Yield the pictures of one figure. Yield nothing if the figure has no data to draw."""
    for name, title, filled in filled_views(figure, report):
        columns = _columns(figure, [view for view, _ in filled])
        notes = [report.banner] if report.banner else []
        yield name, svg_of(sheet(filled, title=title, notes=notes, columns=columns))


def filled_views(
    figure: Figure, report: Report
) -> Iterator[tuple[str, str, list[tuple[ChartView, Rows]]]]:
    """Yield each picture of a figure: its name, its title, and its views with their rows."""
    data = report.data
    every = tables(data)
    drawn = [v for v in views(figure, data) if v.get("variant", "kl") == "kl" and "extra" not in v]
    if figure.kind not in OF_SETTING:
        filled = [(view, rows_of(view, data, every, ())) for view in drawn]
        if filled:
            yield figure.id, figure.title, filled
        return
    taken: set[str] = set()
    configurations = data["configurations"]
    for study, setting in dict.fromkeys((c["study"], c["setting"]) for c in configurations):
        own = [
            i
            for i, c in enumerate(configurations)
            if (c["study"], c["setting"]) == (study, setting)
        ]
        own.sort(key=lambda i: int(configurations[i]["rank"]))
        measured = (m for m in figure.metrics if any(m in configurations[i]["curves"] for i in own))
        metric = next(measured, "")
        each = [(view, rows_of(view, data, every, own, metric)) for view in drawn]
        filled = [
            (_labelled(view, data["metrics"].get(metric)), rows) for view, rows in each if rows
        ]
        if not filled:
            continue
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{figure.id}-{study}-{setting}").strip("-.")[:100]
        while name in taken:
            name += "-"
        taken.add(name)
        where = data.get("studies", {}).get(study, {})
        paper = f" ({where['figure']})" if where.get("figure") else ""
        yield name, f"{figure.title}: {study}{paper}, {setting}", filled


def _labelled(view: ChartView, label: str | None) -> ChartView:
    """Return a view with the metric's label in place of the placeholder METRIC."""
    if METRIC not in view.get("table", "") or label is None:
        return view
    labelled = view.copy()
    labelled["spec"] = colored(view["spec"], {METRIC: label})
    return labelled


def _columns(figure: Figure, drawn: Sequence[ChartView]) -> int:
    if figure.kind == "redrawn":
        return min(3, len(drawn))
    return 1 if any("facet" in view["spec"] for view in drawn) else min(2, len(drawn))


# ---------------------------------------------------------------- one page to print and to mail

WIDE, TALL = 794, 1123
"""Width and height of A4 in pixels of 1/96 inch."""
ROW, TOP, EDGE = 29, 197, 53
MOST_CLAIMS, MOST_PLATES, COLUMNS = 16, 12, 4
PLATE_WIDE, PLATE_TALL = 166, 150
VERDICT_COLOURS = {"holds": "#00694e", "contradicted": "#a33f00"}
QUIET = "#444444"
STYLE = """
text { font-family: 'Liberation Sans', Arial, sans-serif; fill: #16191d; }
.effect .region { fill: #eceef1; }
.effect line { stroke: #16191d; stroke-width: 2; }
.effect .zero { stroke: #888888; stroke-width: 1; }
.effect circle, .effect path { fill: #16191d; }
.holds line { stroke: #00694e; } .holds circle, .holds path { fill: #00694e; }
.contradicted line { stroke: #a33f00; } .contradicted circle, .contradicted path { fill: #a33f00; }
"""


def one_page(report: Report) -> str | None:
    """Return one A4 page with the finding, the claims and redrawn figures as SVG.

    Return None without claims.
    """
    if not report.cards:
        return None
    parts: list[str] = []

    def write(
        x: float,
        y: float,
        lines: Sequence[str],
        size: float = 10,
        *,
        colour: str = "#16191d",
        bold: bool = False,
    ) -> None:
        weight = ' font-weight="bold"' if bold else ""
        for i, line in enumerate(lines):
            at = y + (i + 0.8) * 1.25 * size
            parts.append(
                f'<text x="{x:g}" y="{at:g}" font-size="{size:g}" style="fill:{colour}"{weight}>'
                f"{escape(line)}</text>"
            )

    write(EDGE, 34, [f"{report.name}   {report.banner}"], 8.5, colour="#7a4b00")
    write(EDGE, 50, wrap(report.question or report.name, 84)[:2], 14.5, bold=True)
    write(EDGE, 94, wrap(report.answer, 112)[:2], 12, bold=True)
    write(EDGE, 130, wrap(report.missing, 140)[:2], 10, colour=QUIET)
    write(EDGE, 159, ["  ·  ".join(f"{value} {name}" for name, value in report.facts[:3])], 12)
    cards = report.cards[:MOST_CLAIMS]
    ends = effect_scales(cards)
    for i, card in enumerate(cards):
        y = TOP + i * ROW
        where = f" ({card.where})" if card.where else ""
        write(EDGE, y, wrap((card.says or card.statement) + where, 76)[:2], 9.3)
        colour = VERDICT_COLOURS.get(card.verdict, QUIET)
        if card.effect:
            drawing = effect_drawing(card.effect, ends[card.effect.metric], card.verdict)
            parts.append(_placed(drawing, 405, y, 145, 18))
        write(562, y, wrap(card.here, 27)[:2], 8.6, colour=QUIET)
        write(690, y, [card.words], 8.6, colour=colour, bold=True)
    below = TOP + len(cards) * ROW + 4
    more = len(report.cards) - len(cards)
    note = [axis_note(ends)] if ends else []
    note += [f"{more} more claims are on the page."] if more else []
    write(EDGE, below, wrap(" ".join(note), 160), 8.6)
    parts += _plates(report, below + 26)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDE}" height="{TALL}" '
        f'viewBox="0 0 {WIDE} {TALL}"><style>{STYLE}</style>'
        f'<rect width="{WIDE}" height="{TALL}" fill="#ffffff"/>{"".join(parts)}</svg>'
    )


def _plates(report: Report, top: float) -> Iterator[str]:
    """Yield the first panel of each redrawn figure, as many as fit on the page."""
    room = int((TALL - top - 20) / (PLATE_TALL + 12))
    every = tables(report.data)
    shown = [(p.number, p.figure) for p in report.plates if p.figure and p.figure.panels]
    for i, (number, figure) in enumerate(shown[: min(MOST_PLATES, COLUMNS * room)]):
        row, column = divmod(i, COLUMNS)
        view = views(figure, report.data)[0]
        panels = view.get("panels")
        if panels:
            view = view | {"panels": panels[:1]}
        rows = rows_of(view, report.data, every, ())
        chart = completed(view | {"least": 1}, rows, PLATE_WIDE)
        chart.get("spec", chart)["height"] = PLATE_TALL - 74
        if "facet" in chart:
            chart["facet"]["header"] = {"labels": False, "title": None}
        title = f"{number}: {figure.panels[0].title}"
        whole = without_readings(chart) | {
            "title": {"text": title, "fontSize": 9},
            "config": _small_look(),
        }
        place = EDGE + column * (PLATE_WIDE + 14), top + row * (PLATE_TALL + 12)
        yield _placed(svg_of(whole), *place, PLATE_WIDE, PLATE_TALL)


def _small_look() -> dict[str, Any]:
    look: dict[str, Any] = colored(config(), LIGHT)
    axis = {**look["axis"], "labelFontSize": 8, "titleFontSize": 8, "titlePadding": 3}
    legend = {**look["legend"], "labelFontSize": 7.5, "symbolSize": 110, "columns": 3}
    return look | {"axis": axis, "legend": legend | {"columnPadding": 6, "rowPadding": 0}}


def _placed(svg: str, x: float, y: float, width: float, height: float) -> str:
    """Return a drawing as part of another: at x, y, scaled down to fit into width and height."""
    start = svg[: svg.index(">")]
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', start)
    kind = re.search(r'class="[^"]+"', start)
    if box is None or kind is None:
        raise ValueError(f"a drawing without a view box: {start}")
    own_width, own_height = float(box[1]), float(box[2])
    scale = min(1.0, width / own_width, height / own_height)
    return (
        f'<svg {kind[0]} {box[0]} x="{x:g}" y="{y:g}" width="{scale * own_width:g}" '
        f'height="{scale * own_height:g}">{svg[svg.index(">") + 1 :]}'
    )
