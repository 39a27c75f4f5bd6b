"""A report as one HTML page: its data, its content security policy, and the template's words.

page.html.j2 beside this module has the markup. Jinja escapes every text exactly once.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from orchestrator.analysis.runs import is_accuracy
from orchestrator.analysis.text import metric_title
from orchestrator.charts.files import script
from orchestrator.charts.style import THEMES, config
from orchestrator.report import Report
from orchestrator.report.figures import every_figure, tables, views
from orchestrator.report.markdown import MARKS, PLATES, claims_title
from orchestrator.report.model import Card, ClaimEffect, MapCell, ReportText

if TYPE_CHECKING:
    from jinja2 import Template

Pictures = Mapping[str, Sequence[str]]
"""Figure id -> names of its pictures in figures/, without their endings."""
LONG = 44
"""Maximum number of characters of a field without line breaks."""
AXIS_ENDS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 100.0)
WIDTH = 180
"""Width of the drawing of an effect, in pixels."""
MAIN_PARTS = (
    ("finals", "Results"),
    ("limits", "What this cannot show"),
    ("provenance", "Provenance"),
)
ENOUGH = 2
"""Minimum number of ended runs without a collapse for a field to have the colour of stable."""
PLAIN = ("metrics", "main", "studies", "grids", "thinned", "worst", "mark")
"""Parts of Report.data that the page reads unchanged. The views contain the other parts."""


def html(report: Report, pictures: Pictures | None = None) -> str:
    """Return the whole page as text.

    The page needs no network and no other file. With `pictures`, it links to those files.
    """
    scripts = (_vega(), _asset("figures.js"), _asset("page.js"))
    scales = effect_scales(report.cards)
    page: str = _template().render(
        report=report,
        pictures=pictures or {},
        policy=_policy(scripts),
        style=_asset("page.css"),
        scripts=scripts,
        data=_inlined_json(page_data(report)),
        main_parts=list(_main_parts(report)),
        claims_title=claims_title(report),
        scales=scales,
        axis_ends=", ".join(f"±{end:g} for {metric_title(of)}" for of, end in scales.items()),
    )
    return page.lstrip()


@cache
def _template() -> "Template":
    from jinja2 import Environment, PackageLoader
    from markupsafe import Markup, escape

    def code(text: str) -> Markup:
        """Return a text, escaped. Text between backquotes becomes code."""
        parts = [escape(part) for part in text.split("`")]
        if len(parts) % 2 == 0:  # the last backquote has no partner
            parts[-2:] = [Markup("`").join(parts[-2:])]
        every = (Markup("<code>{}</code>").format(p) if i % 2 else p for i, p in enumerate(parts))
        return Markup("").join(every)

    environment = Environment(
        loader=PackageLoader("dashboards", ""), autoescape=True, trim_blocks=True
    )
    environment.filters["code"] = code
    words = {"marks": MARKS, "plates_title": PLATES, "long": LONG}
    environment.globals |= words | {"at": place_of, "level": level_of}
    return environment.get_template("page.html.j2")


def _main_parts(report: Report) -> Iterator[tuple[str, str]]:
    yield "answer", "The answer"
    if report.plates:
        yield "plates", "The paper's figures"
    sections = {section.id for section in report.sections}
    yield from (each for each in MAIN_PARTS if each[0] in sections)


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


def place_of(value: float, scale: float) -> float:
    """Return the pixel of a value on an axis from -`scale` to `scale`."""
    return round((max(-scale, min(scale, value)) / scale + 1) * WIDTH / 2, 1)


def level_of(cell: ReportText) -> str:
    """Return the class of a field of a collapse map, which names its colour."""
    if not isinstance(cell, MapCell):
        return "empty"
    if not cell.ended:
        return "open"
    if not cell.collapsed:
        return "none" if cell.ended >= max(ENOUGH, cell.declared) else "few"
    return "all" if cell.collapsed == cell.ended else "some"


def page_data(report: Report) -> dict[str, Any]:
    """Return the page's data: views, tables, curves and themes.

    Equal specifications are stored once: `spec` of a view is an index of `specs`.
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


@cache
def _asset(name: str) -> Any:
    from markupsafe import Markup

    return Markup(files("dashboards").joinpath(name).read_text(encoding="utf-8"))  # noqa: S704  (our file)


@cache
def _vega() -> Any:
    from markupsafe import Markup

    text = script()
    if "</script" in text.lower():
        raise ValueError("this release of Vega cannot be inlined: it holds a closing script tag")
    return Markup(text.replace("\r\n", "\n"))  # noqa: S704  (Vega's own, checked above)


def _policy(scripts: Sequence[str]) -> str:
    digests = (hashlib.sha256(text.encode()).digest() for text in scripts)
    hashes = " ".join(f"'sha256-{base64.b64encode(each).decode()}'" for each in digests)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _inlined_json(data: Mapping[str, Any]) -> Any:
    """Return compact JSON. Escape `<`, so that no text can close the script element."""
    from markupsafe import Markup

    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for sign in "<\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)  # noqa: S704  (escaped above)
