"""The parts of the page, from a report's plain data. Everything is escaped here, once."""

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from orchestrator.report.markdown import MARKS, map_text
from orchestrator.report.model import Card, Entry, Figure, Map, MapCell, Section, Table, Text

LONG = 44
"""Characters from which on a field's text is broken into lines."""


def tag(name: str, text: str, attributes: Mapping[str, str] | None = None) -> str:
    """One element with text in it."""
    return f"<{name}{_attributes(attributes or {})}>{escape(text)}</{name}>"


def _attributes(attributes: Mapping[str, str]) -> str:
    return "".join(f' {name}="{escape(value)}"' for name, value in attributes.items())


def navigation(sections: Iterable[Section]) -> str:
    """Links to every section."""
    links = [tag("a", "The answer", {"href": "#answer"})]
    links += [tag("a", section.title, {"href": f"#{section.id}"}) for section in sections]
    return f'<nav aria-label="Sections">{"".join(links)}</nav>'


def cards(found: Sequence[Card]) -> str:
    """The claims with their verdicts; those that could not be tested are folded."""
    tested = [card for card in found if card.verdict != "not testable"]
    rest = [card for card in found if card.verdict == "not testable"]
    if not tested or len(rest) < 3:
        return _cards(found)
    summary = tag("summary", f"{len(rest)} claims that cannot be tested here, and why")
    return f'{_cards(tested)}<details class="untested">{summary}{_cards(rest)}</details>'


def _cards(found: Sequence[Card]) -> str:
    return f'<ul class="claims">{"".join(map(_card, found))}</ul>' if found else ""


def _card(card: Card) -> str:
    kind = card.verdict.replace(" ", "-")
    badge = f'<span class="badge {kind}"><span aria-hidden="true">{MARKS[card.verdict]}</span> '
    badge += f"{escape(card.verdict)}</span>"
    trace = [tag("code", card.source)]
    if card.cells:
        links = ", ".join(tag("a", id_, {"href": f"#cell-{id_}"}) for id_ in card.cells)
        trace.append(f"<p>Judged on {len(card.cells)} cells: {links}</p>")
    head = f'<p class="verdict">{badge}{tag("span", card.name, {"class": "claim"})}</p>'
    return (
        f'<li class="card {kind}">{head}{tag("p", card.statement, {"class": "statement"})}'
        f"{tag('p', card.reason, {'class': 'reason'})}"
        f"<details><summary>As stated, and where from</summary>{''.join(trace)}</details></li>"
    )


def facts(found: Iterable[tuple[str, str]]) -> str:
    """Names and values in a row."""
    pairs = "".join(f"<div>{tag('dt', name)}{tag('dd', value)}</div>" for name, value in found)
    return f'<dl class="facts">{pairs}</dl>'


def block(section: Section, pictures: Mapping[str, Sequence[str]] | None = None) -> str:
    """One section of the page."""
    loud = tag("p", section.note, {"class": "loud", "role": "note"}) if section.note else ""
    inner = [tag("h2", section.title), loud, *(_paragraph("p", text) for text in section.text)]
    if section.points:
        inner.append(f"<ul>{''.join(_paragraph('li', point) for point in section.points)}</ul>")
    names = pictures or {}
    inner += [_figure(figure, names.get(figure.id, ())) for figure in section.figures]
    if section.maps:
        inner.append(f'<div class="maps">{"".join(map(_map, section.maps))}</div>')
    inner += [_table(table) for table in section.tables]
    inner += [_entry(entry) for entry in section.entries]
    return f'<section id="{escape(section.id)}">{"".join(inner)}</section>'


def _paragraph(name: str, text: str) -> str:
    """An element with text in it, in which `...` is code."""
    return f"<{name}>{re.sub('`([^`]+)`', _CODE, escape(text))}</{name}>"


_CODE = r"<code>\1</code>"


def _pictures(names: Sequence[str]) -> str:
    """Links to a figure's pictures, folded where there are many."""
    each = [
        f"{escape(name)}: "
        + " ".join(tag("a", e.upper(), {"href": f"figures/{name}.{e}"}) for e in ("png", "pdf"))
        for name in names
    ]
    if len(each) < 3:
        return f'<p class="pictures">{" · ".join(each)}</p>' if each else ""
    listed = "".join(f"<li>{one}</li>" for one in each)
    return f'<details class="pictures"><summary>As PNG and PDF</summary><ul>{listed}</ul></details>'


def _figure(figure: Figure, pictures: Sequence[str]) -> str:
    attributes = {"data-kind": figure.kind, "data-metrics": " ".join(figure.metrics),
                  "data-alt": figure.alt}  # fmt: skip
    drawing = f'<div class="controls"></div><div class="panels"{_attributes(attributes)}></div>'
    waiting = tag("p", "Drawing needs JavaScript; the tables hold the same numbers.",
                  {"class": "waiting"})  # fmt: skip
    caption = (
        f"<figcaption>{tag('strong', f'{figure.title}.')} {escape(figure.caption)}</figcaption>"
    )
    inner = f"{drawing}{waiting}{caption}{_pictures(pictures)}"
    return f'<figure id="figure-{escape(figure.id)}">{inner}</figure>'


def _table(table: Table) -> str:
    head = "".join(tag("th", name, {"scope": "col"}) for name in table.columns)
    names = table.anchors or ("",) * len(table.rows)
    rows = "".join(map(_row, table.rows, names))
    region = {"class": "scroll", "tabindex": "0", "role": "region", "aria-label": table.caption}
    body = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    scroll = f"<div{_attributes(region)}>{body}</div>"
    if not table.searchable:
        return f'<div class="table">{tag("p", table.caption, {"class": "caption"})}{scroll}</div>'
    search = (
        '<label class="search">Rows that contain '
        '<input type="search" autocomplete="off" spellcheck="false"></label>'
        '<output class="count" aria-live="polite"></output>'
    )
    title = f"{table.caption} ({len(table.rows):,} rows)"
    return f'<details class="table">{tag("summary", title)}{search}{scroll}</details>'


def _row(row: Sequence[Text], name: str) -> str:
    start = f'<tr id="{escape(name)}" tabindex="-1">' if name else "<tr>"
    return f"{start}{''.join(map(_field, row))}</tr>"


def _field(field: Text) -> str:
    if isinstance(field, str):
        start = '<td class="long">' if len(field) > LONG else "<td>"
        return f"{start}{escape(field)}</td>"
    links = " ".join(tag("a", link.text, {"href": link.href}) for link in field)
    return f"<td>{links}</td>"


def _map(found: Map) -> str:
    head = "".join(tag("th", name, {"scope": "col"}) for name in ("KL", *found.columns))
    rows = "".join(
        f"<tr>{tag('th', name, {'scope': 'row'})}{''.join(map(_map_cell, cells))}</tr>"
        for name, cells in found.rows
    )
    caption = tag("caption", found.title)
    return (
        f'<table class="map">{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    )


def _map_cell(cell: MapCell | None) -> str:
    if cell is None:
        return '<td class="empty"></td>'
    if not cell.ended:
        return tag("td", "not ended", {"class": "open"})
    share = cell.collapsed / cell.ended
    level = "none" if share == 0 else "some" if share < 1 else "all"
    text = map_text(cell)
    if cell.ended < cell.declared:
        text += f", {cell.declared - cell.ended} open"
    return tag("td", text, {"class": level})


def _entry(entry: Entry) -> str:
    summary = tag("summary", entry.title)
    link = tag("a", "its row in Provenance", {"href": f"#cell-{entry.cell}"}) if entry.cell else ""
    lines = tag("pre", entry.lines, {"tabindex": "0"})
    return f'<details class="entry">{summary}{lines}{link}</details>'
