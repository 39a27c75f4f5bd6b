"""Write a report as Markdown, for pull requests and MLflow notes."""

import re
from collections.abc import Iterator

from orchestrator.report.model import Card, Map, MapCell, Report, ReportTable, Section, text_of

MARKS = {
    "holds": "✓",
    "contradicted": "✗",
    "holds by construction": "=",
    "no effect": "○",
    "seen": "…",
    "too few runs": "…",
    "not testable": "–",
}
PLATES = "The paper's figures, redrawn"
MAX_ROWS = 200
"""Maximum number of rows of a table. A line gives the number of further rows on the page."""


def markdown(report: Report) -> str:
    """Return the report as Markdown. Escape markup in names and questions."""
    lines = [*_head(report), *_plates(report)]
    return "\n".join([*lines, *(line for s in report.sections for line in _section(s))])


def _plates(report: Report) -> Iterator[str]:
    if report.plates:
        yield f"## {PLATES}\n"
    for plate in report.plates:
        missing = f" {plain(plate.missing)}" if plate.missing else ""
        yield f"- **{plain(plate.number)}, {plain(plate.title)}.** {plain(plate.shows)}{missing}"
        yield from (f"  - {plain(verdict)}: {plain(text)}" for verdict, text in plate.here)
    if report.plates:
        yield "\nThe page draws each beside these words.\n"


def _head(report: Report) -> Iterator[str]:
    yield f"# {plain(report.name)}\n"
    if report.banner:
        yield f"> **{plain(report.banner)}**\n"
    if report.question:
        yield f"**{plain(report.question)}**\n"
    yield f"**{plain(report.answer)}** {plain(report.missing)}\n"
    yield " · ".join(f"{plain(name)}: {plain(value)}" for name, value in report.facts) + "\n"
    yield from _claims(report)
    if report.description:
        yield f"{plain(report.description)}\n"


def _claims(report: Report) -> Iterator[str]:
    cards = report.cards
    if not cards:
        return
    yield from _table(
        ReportTable("", (claims_title(report), "found here", "verdict"), tuple(map(_row, cards)))
    )
    for card in cards:
        yield f"- {MARKS[card.verdict]} **{plain(card.name)}**: {plain(card.reason)}"
    yield ""


def claims_title(report: Report) -> str:
    """Return the title of the column of claims."""
    return "the paper says" if any(card.says for card in report.cards) else "the claim"


def _row(card: Card) -> tuple[str, str, str]:
    where = f" ({card.where})" if card.where else ""
    return (card.says or card.statement) + where, card.here, f"{MARKS[card.verdict]} {card.words}"


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


def _map_table(map_: Map) -> ReportTable:
    rows = tuple((name, *map(map_text, cells)) for name, cells in map_.rows)
    return ReportTable(map_.title, ("KL configuration", *map_.columns), rows)


def map_text(cell: MapCell | None) -> str:
    """Return `2 of 3`, `not ended`, or an empty text if the grid has no such cell."""
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
