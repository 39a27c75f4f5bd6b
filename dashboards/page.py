"""A report as one HTML page.

The module has the parts of the page, the packed curves, and the frame with its content security
policy. Every text is escaped once, in this module.
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
from orchestrator.analysis.stats import ALPHA, t_quantile
from orchestrator.report import Report
from orchestrator.report.markdown import MARKS, map_text
from orchestrator.report.model import (
    Card,
    Entry,
    Figure,
    Map,
    MapCell,
    ReportTable,
    ReportText,
    Section,
)

LONG = 44
"""Characters from which on a field's text is broken into lines."""


def element(name: str, text: str, attributes: Mapping[str, str] | None = None) -> str:
    """Return an element that contains `text`, escaped."""
    return f"<{name}{_attributes(attributes or {})}>{escape(text)}</{name}>"


def _attributes(attributes: Mapping[str, str]) -> str:
    return "".join(f' {name}="{escape(value)}"' for name, value in attributes.items())


def navigation(sections: Iterable[Section]) -> str:
    """Return a `nav` element with a link to every section."""
    links = [element("a", "The answer", {"href": "#answer"})]
    links += [element("a", section.title, {"href": f"#{section.id}"}) for section in sections]
    return f'<nav aria-label="Sections">{"".join(links)}</nav>'


def claim_cards(found: Sequence[Card]) -> str:
    """Return the cards of all claims.

    Three or more claims that could not be tested are folded, if others were tested.
    """
    tested = [card for card in found if card.verdict != "not testable"]
    rest = [card for card in found if card.verdict == "not testable"]
    if not tested or len(rest) < 3:
        return _cards(found)
    summary = element("summary", f"{len(rest)} claims that cannot be tested here, and why")
    return f'{_cards(tested)}<details class="untested">{summary}{_cards(rest)}</details>'


def _cards(found: Sequence[Card]) -> str:
    return f'<ul class="claims">{"".join(map(_card, found))}</ul>' if found else ""


def _card(card: Card) -> str:
    kind = card.verdict.replace(" ", "-")
    badge = f'<span class="badge {kind}"><span aria-hidden="true">{MARKS[card.verdict]}</span> '
    badge += f"{escape(card.verdict)}</span>"
    trace = [element("code", card.source)]
    if card.cells:
        links = ", ".join(element("a", id_, {"href": f"#cell-{id_}"}) for id_ in card.cells)
        trace.append(f"<p>Judged on {len(card.cells)} cells: {links}</p>")
    head = f'<p class="verdict">{badge}{element("span", card.name, {"class": "claim"})}</p>'
    return (
        f'<li class="card {kind}">{head}{element("p", card.statement, {"class": "statement"})}'
        f"{element('p', card.reason, {'class': 'reason'})}"
        f"<details><summary>As stated, and where from</summary>{''.join(trace)}</details></li>"
    )


def fact_list(found: Iterable[tuple[str, str]]) -> str:
    """Return a `dl` element of names and values."""
    pairs = "".join(
        f"<div>{element('dt', name)}{element('dd', value)}</div>" for name, value in found
    )
    return f'<dl class="facts">{pairs}</dl>'


def section_html(section: Section, pictures: Mapping[str, Sequence[str]] | None = None) -> str:
    """Return a section of the page as HTML. `pictures`: figure id -> names of its pictures."""
    loud = element("p", section.note, {"class": "loud", "role": "note"}) if section.note else ""
    inner = [element("h2", section.title), loud, *(_paragraph("p", text) for text in section.text)]
    if section.points:
        inner.append(f"<ul>{''.join(_paragraph('li', point) for point in section.points)}</ul>")
    names = pictures or {}
    inner += [_figure(figure, names.get(figure.id, ())) for figure in section.figures]
    if section.maps:
        inner.append(f'<div class="maps">{"".join(map(_map_html, section.maps))}</div>')
    inner += [_table(table) for table in section.tables]
    inner += [_entry(entry) for entry in section.entries]
    return f'<section id="{escape(section.id)}">{"".join(inner)}</section>'


def _paragraph(name: str, text: str) -> str:
    """Return an element that contains `text`, escaped. Text between backquotes becomes code."""
    return f"<{name}>{re.sub('`([^`]+)`', _CODE, escape(text))}</{name}>"


_CODE = r"<code>\1</code>"


def _pictures(names: Sequence[str]) -> str:
    """Return links to a figure's pictures. Three or more are folded."""
    each = [
        f"{escape(name)}: "
        + " ".join(element("a", e.upper(), {"href": f"figures/{name}.{e}"}) for e in ("png", "pdf"))
        for name in names
    ]
    if len(each) < 3:
        return f'<p class="pictures">{" · ".join(each)}</p>' if each else ""
    listed = "".join(f"<li>{one}</li>" for one in each)
    return f'<details class="pictures"><summary>As PNG and PDF</summary><ul>{listed}</ul></details>'


def _figure(figure: Figure, pictures: Sequence[str]) -> str:
    attributes = {
        "data-kind": figure.kind,
        "data-metrics": " ".join(figure.metrics),
        "data-alt": figure.alt,
    }
    drawing = f'<div class="controls"></div><div class="panels"{_attributes(attributes)}></div>'
    waiting = element(
        "p", "Drawing needs JavaScript; the tables hold the same numbers.", {"class": "waiting"}
    )
    caption = (
        f"<figcaption>{element('strong', f'{figure.title}.')} {escape(figure.caption)}</figcaption>"
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
        return (
            f'<div class="table">{element("p", table.caption, {"class": "caption"})}{scroll}</div>'
        )
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


def _map_html(found: Map) -> str:
    head = "".join(element("th", name, {"scope": "col"}) for name in ("KL", *found.columns))
    rows = "".join(
        f"<tr>{element('th', name, {'scope': 'row'})}{''.join(map(_map_cell, cells))}</tr>"
        for name, cells in found.rows
    )
    caption = element("caption", found.title)
    return (
        f'<table class="map">{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    )


def _map_cell(cell: MapCell | None) -> str:
    if cell is None:
        return '<td class="empty"></td>'
    if not cell.ended:
        return element("td", "not ended", {"class": "open"})
    share = cell.collapsed / cell.ended
    level = "none" if share == 0 else "some" if share < 1 else "all"
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


# Curves as the page holds them: three significant digits in 16 bits, so that the page stays small.
#
# A value is m · 10^e with |m| < 1000 and -12 <= e < 20, written as (m + 999) · 32 + e + 12; 65535
# is no number. Smaller than 1e-12 becomes 0; larger than 9.99e21 becomes that. A series is the
# base64 of little-endian words. page.js reads it, and takes means and intervals from the seeds
# itself.


LOWEST, HIGHEST, GAP = -12, 19, 65535


def packed_data(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return Report.data with packed curves, quantiles of Student's t, and the names of shares.

    The quantiles are by number of seeds; page.js computes means and intervals with them.
    """
    found = data.get("configurations", ())
    most = max((len(c["s"]) for each in found for c in each["curves"].values()), default=0)
    names = {m for each in found for m in each["curves"]}
    return {
        **data,
        "configurations": [
            {**each, "curves": {m: _packed_curve(curve) for m, curve in each["curves"].items()}}
            for each in found
        ],
        "t": {str(n): t_quantile(1 - ALPHA / 2, n - 1) for n in range(2, most + 1)},
        "shares": sorted(filter(is_accuracy, names)),
    }


def _packed_curve(curve: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "g": curve["g"],
        "s": {seed: packed_series(values) for seed, values in curve["s"].items()},
    }


def packed_series(values: Sequence[float | None]) -> str:
    """Return a series as base64, in the 16-bit format described above. None becomes GAP."""
    import numpy as np

    x = np.array([np.nan if v is None else v for v in values], dtype=float)
    known = np.isfinite(x)
    size = np.abs(np.where(known, x, 0.0))
    with np.errstate(divide="ignore"):
        e = np.floor(np.log10(size)) - 2
    e = np.clip(np.where(np.isfinite(e), e, 0), LOWEST, HIGHEST).astype(int)
    m = np.rint(np.where(known, x, 0.0) / 10.0**e)
    over = (np.abs(m) >= 1000) & (e < HIGHEST)
    e, m = np.where(over, e + 1, e), np.where(over, np.rint(m / 10), m)
    code = (np.clip(m, -999, 999) + 999) * 32 + (e - LOWEST)
    plain = np.where(known, code, GAP).astype("<u2")
    return base64.b64encode(plain.tobytes()).decode()


# Report -> HTML: the frame of the page, its policy, and what is inlined.


Pictures = Mapping[str, Sequence[str]]
"""Figure id -> names of its pictures below figures/, without their endings."""


def html(report: Report, pictures: Pictures | None = None, *, live: bool = False) -> str:
    """Return the whole page as text.

    The page fetches nothing and needs no other file. With `pictures`, it links to those files.
    If `live`, it asks its server for newer versions of itself.
    """
    scripts = (
        _plotly(),
        _asset("figures.js"),
        _asset("page.js"),
        *([_asset("live.js")] if live else []),
    )
    head = [
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts, live)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        element("title", f"{report.name}: {report.question}" if report.question else report.name),
        f"<style>{_asset('page.css')}</style>",
    ]
    body = [
        '<a class="skip" href="#answer">Skip to the answer</a>',
        _masthead(report),
        navigation(report.sections),
        "<main>",
        _answer(report),
        *_sections(report, pictures or {}),
        "</main>",
        f"<footer>{element('p', _footer(report))}</footer>",
        f'<script type="application/json" id="data">{_json(packed_data(report.data))}</script>',
        *(f"<script>{text}</script>" for text in scripts),
    ]
    lines = ["<!doctype html>", '<html lang="en">', "<head>", *head, "</head>", "<body>", *body]
    return "\n".join([*lines, "</body>", "</html>", ""])


def _sections(report: Report, pictures: Pictures) -> Iterator[str]:
    """Yield every section. The form of filters comes before the first section with figures."""
    filters = '<form id="filters" aria-label="What the figures show" hidden></form>'
    for section in report.sections:
        if section.figures and filters:
            yield filters
            filters = ""
        yield section_html(section, pictures)


def _masthead(report: Report) -> str:
    banner = (
        element("p", report.banner, {"class": "banner", "role": "note"}) if report.banner else ""
    )
    question = element("h1", report.question or report.name)
    name = element("p", report.name, {"class": "name"}) if report.question else ""
    return f"<header>{banner}<div>{name}{question}</div></header>"


def _answer(report: Report) -> str:
    told = [
        element("h2", "The answer"),
        element("p", report.answer, {"class": "lead"}),
        fact_list(report.facts),
        claim_cards(report.cards),
        element("p", report.description, {"class": "description"}) if report.description else "",
    ]
    return f'<section id="answer">{"".join(told)}</section>'


def _footer(report: Report) -> str:
    when = f" Its newest result is of {report.created}." if report.created else ""
    return (
        f"Written by {report.written or 'orch'}.{when} Every number can be traced: the "
        "cells of its row, or a click on its mark, lead to the row of each cell in Provenance."
    )


@cache
def _asset(name: str) -> str:
    return files("dashboards").joinpath(name).read_text(encoding="utf-8")


@cache
def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    text: str = get_plotlyjs()
    if "</script" in text.lower():
        raise ValueError("this plotly.js cannot be inlined: it holds a closing script tag")
    return text.replace("\r\n", "\n")


def _policy(scripts: Sequence[str], live: bool) -> str:
    hashes = " ".join(f"'sha256-{_hash(text)}'" for text in scripts)
    asking = "connect-src 'self'; " if live else ""
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        f"{asking}base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _json(data: Mapping[str, Any]) -> str:
    """Return compact JSON that cannot close its script element."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
