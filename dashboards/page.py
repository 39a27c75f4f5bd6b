"""A report as one HTML page.

This module has the parts of the page, the packed curves, the outer HTML with its content security
policy. It escapes every text exactly once.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from orchestrator.analysis.runs import is_accuracy
from orchestrator.analysis.text import metric_title
from orchestrator.charts.files import script
from orchestrator.charts.style import THEMES, config
from orchestrator.report import Report
from orchestrator.report.figures import every_figure, tables, views
from orchestrator.report.markdown import MARKS, PLATES, claims_title, map_text
from orchestrator.report.model import (
    Card,
    ClaimEffect,
    Entry,
    Figure,
    Map,
    MapCell,
    Plate,
    ReportTable,
    ReportText,
    Section,
)

LONG = 44
"""Maximum number of characters of a field without line breaks."""


def element(name: str, text: str, attributes: Mapping[str, str] | None = None) -> str:
    """Return an element that contains `text`, escaped."""
    return f"<{name}{_attributes(attributes or {})}>{escape(text)}</{name}>"


def _attributes(attributes: Mapping[str, str]) -> str:
    return "".join(f' {name}="{escape(value)}"' for name, value in attributes.items())


def navigation(report: Report) -> str:
    """Return a `nav` element with links to the main parts and folded links to every section."""
    sections = {section.id for section in report.sections}
    main = [("answer", "The answer")]
    main += [("plates", "The paper's figures")] if report.plates else []
    main += [each for each in MAIN_PARTS if each[0] in sections]
    links = [element("a", title, {"href": f"#{id_}"}) for id_, title in main]
    rest = "".join(
        element("a", section.title, {"href": f"#{section.id}"}) for section in report.sections
    )
    every = f"<details><summary>All sections</summary><div>{rest}</div></details>"
    return f'<nav aria-label="Sections">{"".join(links)}{every}</nav>'


def claims_list(report: Report) -> str:
    """Return the claims, a line each with verdict, effect and, on click, its numbers and cells.

    Effects of one measure have one scale.
    """
    if not report.cards:
        return ""
    ends = effect_scales(report.cards)
    rows = "".join(_claim(card, ends) for card in report.cards)
    note = element("p", axis_note(ends), {"class": "axis"}) if ends else ""
    head = element("h3", claims_title(report).capitalize())
    return f'<div id="claims">{head}{rows}{note}</div>'


def effect_scales(cards: Sequence[Card]) -> dict[str, float]:
    """Return measure -> end of the axis on which its effects are drawn.

    Accuracies in and out of domain are compared with each other, so they have one axis.
    """
    measures: dict[str, list[ClaimEffect]] = {}
    for card in cards:
        if card.effect:
            measures.setdefault(card.effect.metric, []).append(card.effect)
    ends = {metric: axis_bound(effects) for metric, effects in measures.items()}
    of_accuracy = max((end for metric, end in ends.items() if is_accuracy(metric)), default=0.0)
    return {metric: of_accuracy if is_accuracy(metric) else end for metric, end in ends.items()}


def axis_bound(effects: Iterable[ClaimEffect]) -> float:
    """Return the end of the axis of effects. It is beyond every effect; intervals may be cut."""
    largest = max((abs(effect.value) for effect in effects), default=0.0)
    return next((end for end in AXIS_ENDS if end >= 1.4 * largest), AXIS_ENDS[-1])


def axis_note(ends: Mapping[str, float]) -> str:
    """Return what the drawings of effects mean, with the scale of each measure."""
    scales = ", ".join(f"±{end:g} for {metric_title(metric)}" for metric, end in ends.items())
    return AXIS_NOTE.format(scales=scales)


def _claim(card: Card, ends: Mapping[str, float]) -> str:
    kind = card.verdict.replace(" ", "-")
    badge = f'<span class="badge {kind}"><span aria-hidden="true">{MARKS[card.verdict]}</span> '
    badge += f"{escape(card.words)}</span>"
    effect = card.effect
    drawn = effect_drawing(effect, ends[effect.metric], card.verdict) if effect else ""
    line = (
        f"{badge}{element('span', card.says or card.statement, {'class': 'statement'})}"
        f'<span class="drawn">{drawn}</span>{element("span", card.here, {"class": "here"})}'
    )
    trace = [element("p", " ".join(filter(None, (card.plain, card.statement))))]
    trace += [element("p", card.where)] if card.where else []
    trace += [element("p", card.reason, {"class": "reason"})]
    trace += [f"<p>{element('span', card.name)}: {element('code', card.source)}</p>"]
    if card.cells:
        links = [element("a", id_, {"href": f"#cell-{id_}"}) for id_ in card.cells]
        trace.append(f"<p>Judged on {len(card.cells)} cells: {', '.join(links)}</p>")
    return (
        f'<details class="claim {kind}"><summary>{line}</summary>'
        f'<div class="trace">{"".join(trace)}</div></details>'
    )


AXIS_ENDS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 100.0)
AXIS_NOTE = (
    "Effects with 95 % intervals ({scales}); right of the line is as claimed, shaded is where the "
    "claim holds. An arrow: the interval goes on."
)
MAIN_PARTS = (
    ("finals", "Results"),
    ("limits", "What this cannot show"),
    ("provenance", "Provenance"),
)
WIDTH, HEIGHT, MIDDLE = 180, 16, 8
"""Width, height and vertical centre of the drawing of an effect, in pixels."""


def effect_drawing(effect: ClaimEffect, scale: float, verdict: str) -> str:
    """Return an effect and its interval as SVG, on an axis from -`scale` to `scale`."""

    def at(value: float) -> float:
        return round((max(-scale, min(scale, value)) / scale + 1) * WIDTH / 2, 1)

    low, high = effect.region
    left, right = at(low), at(scale if high is None else high)
    width = round(right - left, 1)
    parts = [
        f'<rect class="region" x="{left}" y="0" width="{width}" height="{HEIGHT}"/>',
        f'<line class="zero" x1="{WIDTH / 2}" x2="{WIDTH / 2}" y1="0" y2="{HEIGHT}"/>',
    ]
    if effect.low is not None and effect.high is not None:
        ends = (at(effect.low), at(effect.high))
        parts.append(f'<line x1="{ends[0]}" x2="{ends[1]}" y1="{MIDDLE}" y2="{MIDDLE}"/>')
        if effect.low < -scale:
            parts.append(f'<path d="M0 {MIDDLE}l7 -4v8z"/>')
        if effect.high > scale:
            parts.append(f'<path d="M{WIDTH} {MIDDLE}l-7 -4v8z"/>')
    parts.append(f'<circle cx="{at(effect.value)}" cy="{MIDDLE}" r="4"/>')
    kind = verdict.replace(" ", "-")
    return (
        f'<svg class="effect {kind}" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" aria-hidden="true">{"".join(parts)}</svg>'
    )


def plates_html(report: Report, pictures: Mapping[str, Sequence[str]]) -> str:
    """Return the published figures, each with its content in words and our figure."""
    if not report.plates:
        return ""
    of = f" of {report.source}" if report.source else ""
    text = f"What each figure{of} shows and prints; the same is drawn from this experiment."
    each = "".join(_plate(plate, pictures) for plate in report.plates)
    return (
        f'<section id="plates">{element("h2", PLATES)}{element("p", text)}'
        f'<div class="plates">{each}</div></section>'
    )


def _plate(plate: Plate, pictures: Mapping[str, Sequence[str]]) -> str:
    figure = plate.figure
    title = element("h3", f"{plate.number}  {plate.title}")
    words = f"{element('p', 'The paper shows', {'class': 'label'})}{element('p', plate.shows)}"
    words += element("p", plate.printed, {"class": "printed"}) if plate.printed else ""
    each = "".join(
        f"<li>{element('strong', verdict)}: {escape(text)}</li>" for verdict, text in plate.here
    )
    findings = f"{element('p', 'Here', {'class': 'label'})}<ul>{each}</ul>" if each else ""
    ours = "" if figure is None else _figure(figure, pictures.get(figure.id, ()))
    ours += element("p", plate.missing, {"class": "nothing"}) if plate.missing else ""
    wide = " wide" if figure and (figure.kind == "gradients" or len(figure.panels) > 2) else ""
    return (
        f'<article class="plate{wide}">{title}<div class="shows">{words}</div>'
        f'<div class="ours">{ours}</div><div class="found">{findings}</div></article>'
    )


def fact_line(facts: Sequence[tuple[str, str]]) -> str:
    """Return the facts as one paragraph."""
    return element("p", " · ".join(f"{name}: {value}" for name, value in facts), {"class": "rest"})


def section_html(section: Section, pictures: Mapping[str, Sequence[str]] | None = None) -> str:
    """Return a section of the page as HTML. `pictures`: figure id -> names of its pictures."""
    loud = element("p", section.note, {"class": "loud", "role": "note"}) if section.note else ""
    inner = [element("h2", section.title), loud, *(_paragraph("p", text) for text in section.text)]
    if section.points:
        inner.append(f"<ul>{''.join(_paragraph('li', point) for point in section.points)}</ul>")
    names = pictures or {}
    inner += [_figure(figure, names.get(figure.id, ())) for figure in section.figures]
    if section.maps:
        region = {"class": "maps", "tabindex": "0", "role": "region", "aria-label": section.title}
        maps = "".join(map(_map_html, section.maps))
        inner.append(f"<div{_attributes(region)}>{maps}</div>")
    inner += [_table(table) for table in section.tables]
    inner += [_entry(entry) for entry in section.entries]
    return f'<section id="{escape(section.id)}">{"".join(inner)}</section>'


def _paragraph(name: str, text: str) -> str:
    """Return an element that contains `text`, escaped. Text between backquotes becomes code."""
    return f"<{name}>{re.sub('`([^`]+)`', _CODE, escape(text))}</{name}>"


_CODE = r"<code>\1</code>"


def _pictures(names: Sequence[str]) -> str:
    """Return links to a figure's pictures. Three or more are folded."""
    links = [
        " ".join(element("a", e.upper(), {"href": f"figures/{name}.{e}"}) for e in ("png", "pdf"))
        for name in names
    ]
    if len(names) == 1:
        return f'<p class="pictures">As a file: {links[0]}</p>'
    each = [f"{escape(name)}: {link}" for name, link in zip(names, links, strict=True)]
    if len(each) < 3:
        return f'<p class="pictures">{" · ".join(each)}</p>' if each else ""
    listed = "".join(f"<li>{one}</li>" for one in each)
    return f'<details class="pictures"><summary>As PNG and PDF</summary><ul>{listed}</ul></details>'


def _figure(figure: Figure, pictures: Sequence[str]) -> str:
    attributes = {
        "data-kind": figure.kind,
        "data-metrics": " ".join(figure.metrics),
        "data-alt": figure.alt,
        "data-views": figure.id,
    }
    drawing = f'<div class="controls"></div><div class="panels"{_attributes(attributes)}></div>'
    waiting = element(
        "p", "Drawing needs JavaScript; the tables hold the same numbers.", {"class": "waiting"}
    )
    caption = (
        f"<figcaption>{element('strong', f'{figure.title}.')} {escape(figure.caption)}</figcaption>"
        if figure.caption
        else ""
    )
    inner = f"{drawing}{waiting}{caption}{_pictures(pictures)}"
    return f'<figure id="figure-{escape(figure.id)}">{inner}</figure>'


def _table(table: ReportTable) -> str:
    head = "".join(element("th", name, {"scope": "col"}) for name in table.columns)
    names = table.anchors or ("",) * len(table.rows)
    rows = "".join(map(_row, table.rows, names))
    region = {"class": "scroll", "tabindex": "0", "role": "region", "aria-label": table.caption}
    body = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    scroll = f"<div{_attributes(region)}>{body}</div>"
    if not table.searchable:
        kind = "table exported" if table.exported else "table"
        caption = element("p", table.caption, {"class": "caption"})
        return f'<div class="{kind}">{caption}{scroll}</div>'
    search = (
        '<label class="search">Rows that contain '
        '<input type="search" autocomplete="off" spellcheck="false"></label>'
        '<output class="count" aria-live="polite"></output>'
    )
    title = f"{table.caption} ({len(table.rows):,} rows)"
    return f'<details class="table">{element("summary", title)}{search}{scroll}</details>'


def _row(row: Sequence[ReportText], name: str) -> str:
    start = f'<tr id="{escape(name)}" tabindex="-1">' if name else "<tr>"
    return f"{start}{''.join(map(_field, row))}</tr>"


def _field(field: ReportText) -> str:
    if isinstance(field, str):
        start = '<td class="long">' if len(field) > LONG else "<td>"
        return f"{start}{escape(field)}</td>"
    links = " ".join(element("a", link.text, {"href": link.href}) for link in field)
    return f"<td>{links}</td>"


def _map_html(map_: Map) -> str:
    head = "".join(element("th", name, {"scope": "col"}) for name in ("KL", *map_.columns))
    rows = "".join(
        f"<tr>{element('th', name, {'scope': 'row'})}{''.join(map(_map_cell, cells))}</tr>"
        for name, cells in map_.rows
    )
    caption = element("caption", map_.title)
    return (
        f'<table class="map">{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    )


ENOUGH = 2
"""Minimum number of ended runs without a collapse for a field to have the colour of stable."""


def _map_cell(cell: MapCell | None) -> str:
    if cell is None:
        return '<td class="empty"></td>'
    if not cell.ended:
        return element("td", "not ended", {"class": "open"})
    share = cell.collapsed / cell.ended
    settled = cell.ended >= max(ENOUGH, cell.declared)
    level = "some" if 0 < share < 1 else "all" if share else "none" if settled else "few"
    text = map_text(cell)
    if cell.ended < cell.declared:
        text += f", {cell.declared - cell.ended} open"
    return element("td", text, {"class": level})


def _entry(entry: Entry) -> str:
    summary = element("summary", entry.title)
    link = (
        element("a", "its row in Provenance", {"href": f"#cell-{entry.cell}"}) if entry.cell else ""
    )
    lines = element("pre", entry.lines, {"tabindex": "0"})
    return f'<details class="entry">{summary}{lines}{link}</details>'


def page_data(report: Report) -> dict[str, Any]:
    """Return the page's data.

    The data are views, tables, curves and themes. Equal specifications are stored once: `spec` of
    a view is an index of `specs`.
    """
    data = report.data
    configurations = data.get("configurations", ())
    specs: dict[str, int] = {}

    def stored(view: Mapping[str, Any]) -> dict[str, Any]:
        place = specs.setdefault(json.dumps(view["spec"], ensure_ascii=False), len(specs))
        return {**view, "spec": place}

    drawn = {
        figure.id: [stored(view) for view in views(figure, data)]
        for figure in (every_figure(report) if data else ())
    }
    return {
        **{key: data[key] for key in PLAIN if key in data},
        "configurations": [
            {
                **{key: value for key, value in each.items() if key != "finals"},
                "scored": bool(each["finals"]),
            }
            for each in configurations
        ],
        "tables": tables(data) if configurations else {},
        "views": drawn,
        "specs": [json.loads(text) for text in specs],
        "themes": THEMES,
        "look": config(),
    }


PLAIN = ("metrics", "main", "studies", "grids", "thinned")
"""Parts of Report.data that the page reads unchanged. The views contain the other parts."""


# Report -> HTML: the outer HTML, its content security policy, and the inlined files.


Pictures = Mapping[str, Sequence[str]]
"""Figure id -> names of its pictures in figures/, without their endings."""


def html(report: Report, pictures: Pictures | None = None) -> str:
    """Return the whole page as text.

    The page needs no network and no other file. With `pictures`, it links to those files.
    """
    scripts = (_vega(), _asset("figures.js"), _asset("page.js"))
    head = [
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        element("title", f"{report.name}: {report.question}" if report.question else report.name),
        f"<style>{_asset('page.css')}</style>",
    ]
    body = [
        '<a class="skip" href="#answer">Skip to the answer</a>',
        _masthead(report),
        navigation(report),
        "<main>",
        _answer(report, pictures or {}),
        plates_html(report, pictures or {}),
        *_sections(report, pictures or {}),
        "</main>",
        f"<footer>{element('p', _footer(report))}</footer>",
        f'<script type="application/json" id="data">{_inlined_json(page_data(report))}</script>',
        *(f"<script>{text}</script>" for text in scripts),
    ]
    lines = ["<!doctype html>", '<html lang="en">', "<head>", *head, "</head>", "<body>", *body]
    return "\n".join([*lines, "</body>", "</html>", ""])


def _sections(report: Report, pictures: Pictures) -> Iterator[str]:
    """Yield the sections, then those on method, folded. The filters precede the first figure."""
    filters = '<form id="filters" aria-label="What the figures show" hidden></form>'
    folded = [section for section in report.sections if section.folded]
    for section in report.sections:
        if section.figures and not section.folded and filters:
            yield filters
            filters = ""
        if not section.folded:
            yield section_html(section, pictures)
    if folded:
        names = ", ".join(section.title for section in folded)
        inner = "".join(section_html(section, pictures) for section in folded)
        summary = element("summary", f"Details: {names}")
        yield f'<details id="details">{summary}{filters}{inner}</details>'


def _masthead(report: Report) -> str:
    banner = (
        element("p", report.banner, {"class": "banner", "role": "note"}) if report.banner else ""
    )
    question = element("h1", report.question or report.name)
    name = element("p", report.name, {"class": "name"}) if report.question else ""
    return f"<header>{banner}<div>{name}{question}</div></header>"


def _answer(report: Report, pictures: Pictures) -> str:
    first = report.first
    parts = [
        element("h2", "The answer"),
        *(_finding(label, text) for label, text in report.findings),
        element("p", report.missing, {"class": "missing"}) if report.missing else "",
        _figure(first, pictures.get(first.id, ())) if first else "",
        claims_list(report),
        fact_line(report.facts),
        element("p", report.description, {"class": "description"}) if report.description else "",
    ]
    return f'<section id="answer">{"".join(parts)}</section>'


def _finding(label: str, text: str) -> str:
    if label:
        return f'<p class="lead">{element("strong", f"{label}:")} {escape(text)}.</p>'
    return f'<p class="lead">{escape(text[:1].upper() + text[1:])}.</p>'


def _footer(report: Report) -> str:
    when = f" Its newest result is of {report.created}." if report.created else ""
    trace = ""
    if any(section.id == "provenance" for section in report.sections):
        trace = (
            " Every number can be traced: the cells of its row, or a click on its mark, lead to "
            "the row of each cell in Provenance."
        )
    return f"Written by {report.written or 'orch'}.{when}{trace}"


@cache
def _asset(name: str) -> str:
    return files("dashboards").joinpath(name).read_text(encoding="utf-8")


@cache
def _vega() -> str:
    text = script()
    if "</script" in text.lower():
        raise ValueError("this release of Vega cannot be inlined: it holds a closing script tag")
    return text.replace("\r\n", "\n")


def _policy(scripts: Sequence[str]) -> str:
    hashes = " ".join(f"'sha256-{_hash(text)}'" for text in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _json(content: object) -> str:
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _inlined_json(data: Mapping[str, Any]) -> str:
    """Return compact JSON. Escape `<`, so that no text can close the script element."""
    return (
        _json(data)
        .replace("<", "\\u003c")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )
