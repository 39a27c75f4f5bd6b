"""A report as Markdown, for pull requests and MLflow notes."""

import re
from collections.abc import Iterator

from orchestrator.report.model import Card, Map, MapCell, Report, ReportTable, Section, text_of

MARKS = {"supported": "✓", "contradicted": "✗", "underpowered": "…", "not testable": "–"}
MAX_ROWS = 200
"""Longer tables are cut, and say so; the page has them whole."""


def markdown(report: Report) -> str:
    """Return the whole report as Markdown. Markup in names and questions is escaped."""
    return "\n".join([*_head(report), *(line for s in report.sections for line in _section(s))])


def _head(report: Report) -> Iterator[str]:
    yield f"# {plain(report.name)}\n"
    if report.banner:
        yield f"> **{plain(report.banner)}**\n"
    if report.question:
        yield f"**{plain(report.question)}**\n"
    yield f"{plain(report.answer)}\n"
    for card in report.cards:
        yield _card(card)
    yield ""
    yield " · ".join(f"{plain(name)}: {plain(value)}" for name, value in report.facts) + "\n"
    if report.description:
        yield f"{plain(report.description)}\n"


def _card(card: Card) -> str:
    head = f"- {MARKS[card.verdict]} **{card.verdict}** ({plain(card.name)}): "
    return f"{head}{plain(card.statement)} {plain(card.reason)}"


def _section(section: Section) -> Iterator[str]:
    yield f"## {plain(section.title)}\n"
    if section.note:
        yield f"> **{plain(section.note)}**\n"
    for paragraph in section.text:
        yield f"{plain(paragraph)}\n"
    if section.points:
        yield "\n".join(f"- {plain(point)}" for point in section.points) + "\n"
    for figure in section.figures:
        yield f"*Drawn on the page:* {plain(figure.title)}. {plain(figure.caption)}\n"
    for one in section.maps:
        yield from _table(_map_table(one))
    for table in section.tables:
        yield from _table(table)
    for entry in section.entries:
        yield f"**{plain(entry.title)}**\n"
        yield "\n".join(f"    {line}" for line in entry.lines.splitlines()) + "\n"


def _map_table(found: Map) -> ReportTable:
    rows = tuple((name, *map(map_text, cells)) for name, cells in found.rows)
    return ReportTable(found.title, ("KL configuration", *found.columns), rows)


def map_text(cell: MapCell | None) -> str:
    """Return `2 of 3`, `not ended`, or an empty text where the grid has no cell."""
    return (
        "" if cell is None else f"{cell.collapsed} of {cell.ended}" if cell.ended else "not ended"
    )


def _table(table: ReportTable) -> Iterator[str]:
    if table.caption:
        yield f"*{plain(table.caption)}*\n"
    yield "| " + " | ".join(map(plain, table.columns)) + " |"
    yield "|" + " --- |" * len(table.columns)
    for row in table.rows[:MAX_ROWS]:
        yield "| " + " | ".join(plain(text_of(field)) for field in row) + " |"
    if len(table.rows) > MAX_ROWS:
        yield f"\n{len(table.rows) - MAX_ROWS:,} more rows are on the page."
    yield ""


def plain(text: str) -> str:
    """Return the text on one line, escaped for Markdown and HTML."""
    escaped = re.sub(r"([\\`*_\[\]|#])", r"\\\1", " ".join(text.split()))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
