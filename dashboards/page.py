"""Report -> HTML: the frame of the page, its policy, and what is inlined."""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from dashboards.packing import packed
from dashboards.parts import block, cards, facts, navigation, tag
from orchestrator.report import Report

Pictures = Mapping[str, Sequence[str]]
"""Figure id -> names of its pictures below figures/, without their endings."""


def html(report: Report, pictures: Pictures | None = None, *, live: bool = False) -> str:
    """The whole page as text. It fetches nothing and needs nothing beside it; with `pictures`, it
    links to those files; `live`, it asks the server it came from for newer versions of itself."""
    scripts = (_plotly(), _own("figures.js"), _own("page.js"), *([_own("live.js")] if live else []))
    head = [
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts, live)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        tag("title", f"{report.name}: {report.question}" if report.question else report.name),
        f"<style>{_own('page.css')}</style>",
    ]
    body = [
        '<a class="skip" href="#answer">Skip to the answer</a>',
        _masthead(report),
        navigation(report.sections),
        "<main>",
        _answer(report),
        *_sections(report, pictures or {}),
        "</main>",
        f"<footer>{tag('p', _footer(report))}</footer>",
        f'<script type="application/json" id="data">{_json(packed(report.data))}</script>',
        *(f"<script>{text}</script>" for text in scripts),
    ]
    lines = ["<!doctype html>", '<html lang="en">', "<head>", *head, "</head>", "<body>", *body]
    return "\n".join([*lines, "</body>", "</html>", ""])


def _sections(report: Report, pictures: Pictures) -> Iterator[str]:
    """Every section; what chooses the figures' content stands before the first that has any."""
    filters = '<form id="filters" aria-label="What the figures show" hidden></form>'
    for section in report.sections:
        if section.figures and filters:
            yield filters
            filters = ""
        yield block(section, pictures)


def _masthead(report: Report) -> str:
    banner = tag("p", report.banner, {"class": "banner", "role": "note"}) if report.banner else ""
    question = tag("h1", report.question or report.name)
    name = tag("p", report.name, {"class": "name"}) if report.question else ""
    return f"<header>{banner}<div>{name}{question}</div></header>"


def _answer(report: Report) -> str:
    told = [
        tag("h2", "The answer"),
        tag("p", report.answer, {"class": "lead"}),
        facts(report.facts),
        cards(report.cards),
        tag("p", report.description, {"class": "description"}) if report.description else "",
    ]
    return f'<section id="answer">{"".join(told)}</section>'


def _footer(report: Report) -> str:
    when = f" Its newest result is of {report.created}." if report.created else ""
    return (
        f"Written by {report.written or 'orch'}.{when} Every number can be traced: the "
        "cells of its row, or a click on its mark, lead to the row of each cell in Provenance."
    )


@cache
def _own(name: str) -> str:
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
    """Compact JSON that cannot close its script element."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
