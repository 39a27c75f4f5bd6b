"""Write a report's figures as PNG and PDF files: the page's views with the rows of each setting."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from orchestrator.charts.files import (
    colored,
    converted,
    sheet,
    svg_of,
)
from orchestrator.charts.marks import ChartView, Rows
from orchestrator.files import write_bytes
from orchestrator.report import Report
from orchestrator.report.figures import METRIC, every_figure, rows_of, tables, views
from orchestrator.report.model import Figure

FORMATS = ("png", "pdf")
OF_SETTING = ("curves", "measures", "finals")
"""Kinds of figures with one picture per study and setting. Other figures have one picture."""
Drawn = tuple[str, str]
"""A file's name without its ending, and the picture as SVG."""


def picture_names(report: Report) -> dict[str, tuple[str, ...]]:
    """Return figure id -> names of its pictures without endings. Draw nothing."""
    return {
        figure.id: tuple(name for name, _, _ in filled_views(figure, report))
        for figure in every_figure(report)
    }


def pictures(report: Report | None, folder: Path) -> None:
    """Write a report's pictures to `folder`.

    Remove all other PNG and PDF files from the folder. Without a report, remove all of them.
    """
    kept: set[str] = set()
    if report is not None:
        for name, svg in (drawn for f in every_figure(report) for drawn in draw_figure(f, report)):
            for ending in FORMATS:
                write_bytes(folder / f"{name}.{ending}", converted(svg, ending))
                kept.add(f"{name}.{ending}")
    for path in folder.glob("*"):
        if path.suffix[1:] in FORMATS and path.name not in kept:
            path.unlink()


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
