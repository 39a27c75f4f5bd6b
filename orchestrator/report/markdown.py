"""Write a report as Markdown (report.md.j2), for pull requests and MLflow notes."""

import re
from functools import cache
from typing import TYPE_CHECKING

from orchestrator.report.model import Report, text_of

if TYPE_CHECKING:
    from jinja2 import Template

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
    text: str = _template().render(report=report, claims_title=claims_title(report))
    return text.rstrip("\n") + "\n"


@cache
def _template() -> "Template":
    from jinja2 import Environment, PackageLoader

    environment = Environment(  # noqa: S701  (`plain` escapes for Markdown and HTML)
        loader=PackageLoader("orchestrator.report", ""), trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"plain": plain, "text_of": text_of}
    environment.globals |= {"marks": MARKS, "plates_title": PLATES, "most": MAX_ROWS}
    return environment.get_template("report.md.j2")


def claims_title(report: Report) -> str:
    """Return the title of the column of claims."""
    return "the paper says" if any(card.says for card in report.cards) else "the claim"


def plain(text: str) -> str:
    """Return the text on one line, escaped for Markdown and HTML."""
    escaped = re.sub(r"([\\`*_\[\]|#])", r"\\\1", " ".join(text.split()))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
