"""The words of a report that do not change: words.yaml beside this module."""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from orchestrator.report.model import Figure, FigureKind, Section


@cache
def _words() -> Mapping[str, Any]:
    text = files("orchestrator.report").joinpath("words.yaml").read_text(encoding="utf-8")
    words: Mapping[str, Any] = yaml.safe_load(text)
    return words


def section(name: str, fill: Mapping[str, object] | None = None, **parts: Any) -> Section:
    """Return a section with its title, texts and note. `fill`: what stands in their braces.

    `parts`: the other fields of the section; `text` of them stands after the texts.
    """
    own = _words()["sections"][name]
    text = tuple(each.format(**(fill or {})) for each in own.get("text", ()))
    more = {key: own[key] for key in ("note", "folded") if key in own}
    return Section(name, own["title"], (*text, *parts.pop("text", ())), **more, **parts)


def figure(
    name: str, kind: FigureKind, fill: Mapping[str, object] | None = None, **parts: Any
) -> Figure:
    """Return a figure with its title, caption and alternative text."""
    own = _words()["figures"][name]
    words = {key: own[key].format(**(fill or {})).strip() for key in ("title", "caption", "alt")}
    return Figure(name, kind, **words, **parts)


def methods(fill: Mapping[str, object]) -> tuple[str, ...]:
    """Return the sentences on the methods behind the numbers."""
    return tuple(each.format(**fill) for each in _words()["methods"])


def limit(name: str, **fill: object) -> str:
    """Return a sentence on what an experiment cannot show."""
    text: str = _words()["limits"][name]
    return text.format(**fill)
