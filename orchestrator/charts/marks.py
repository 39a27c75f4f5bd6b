"""Vega-Lite parts of charts: curves with bands, dots with intervals, maps of fields."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

from orchestrator.charts.style import STAR, Spec

Rows = list[dict[str, Any]]
HEIGHT, STEP = 190, 21
"""Height in pixels of a panel of curves, and of a row of dots."""
STEP_TITLE = "train step"


class ChartView(TypedDict):
    """A chart without its width and theme, and usually without its rows."""

    title: str
    """The title above the chart; empty if its panels have titles."""
    spec: Spec
    """Layers, or a facet of layers by the field `panel`. A layer with `needs` is left out if no row
    has that field."""
    least: int
    """Minimum width of a panel in pixels. A narrower screen uses its own width."""
    most: NotRequired[int]
    names: NotRequired[str]
    """The field whose values are the names of rows, to the left of the panels."""
    rows: NotRequired[Rows]
    table: NotRequired[str]
    """The table that has the rows if the view does not: see report/figures.py."""
    at: NotRequired[list[int]]
    """Indices of the configurations to draw; if absent, draw those that the reader selects."""
    panels: NotRequired[list[tuple[str, list[int]]]]
    """Panels of curves that the reader's selection does not change: title, configurations."""
    variant: NotRequired[str]
    """The selection of panels for which the view is drawn."""
    extra: NotRequired[bool]
    """True: draw the view only on demand."""


Looks = Mapping[str, Spec]
_DOTS = {"symbolSize": 80}
_LINES = {"symbolType": "stroke", "symbolOpacity": 1, "symbolFillColor": "transparent"}


def quantity(field: str, title: str | None, **more: Any) -> Spec:
    """Return the channel of a number. `more`: properties of its scale."""
    return {
        "field": field,
        "type": "quantitative",
        "title": title,
        "scale": more if "type" in more else {"zero": False} | more,
    }


def series(
    field: str, looks: Looks, *channels: str, legend: bool = True, dots: bool = False
) -> Spec:
    """Return the channels that distinguish series. `dots`: the legend shows dots, not lines."""
    shown: Spec = {"legend": (_DOTS if dots else _LINES) if legend else None}
    return {
        channel: {"field": field, "type": "nominal", "title": None, "scale": looks[channel]} | shown
        for channel in channels
    }


def faceted(layers: Spec) -> Spec:
    """Return a facet of the same layers, with one panel per value of the field `panel`."""
    facet = {"field": "panel", "type": "nominal", "sort": None, "title": None}
    return {"facet": facet, "spacing": {"row": 10, "column": 14}, "spec": layers}


def reading(*fields: tuple[str, str] | tuple[str, str, str]) -> list[Spec]:
    """Return the tooltip of a mark. Each field has a name, a title and, for a number, a format."""
    return [
        {"field": one[0], "title": one[1], "type": "quantitative", "format": one[2]}
        if len(one) == 3
        else {"field": one[0], "title": one[1], "type": "nominal"}
        for one in fields
    ]


_INTERVAL = "'[' + format({low}, '.3g') + ', ' + format({high}, '.3g') + ']'"


def interval_text(field: str, low: str, high: str, other: str) -> Spec:
    """Return a transform that writes an interval as text into `field`."""
    low, high = f"datum.{low}", f"datum.{high}"
    text = _INTERVAL.format(low=low, high=high)
    return {"calculate": f"isValid({low}) ? {text} : '{other}'", "as": field}


def valid(field: str) -> Spec:
    """Return the filter that keeps the rows in which a field has a value."""
    return {"filter": f"isValid(datum.{field})"}


def layer(
    kind: str, encoding: Spec, *transform: Spec, name: str = "", needs: str = "", **mark: Any
) -> Spec:
    """Return a layer of one kind of mark. `mark`: its properties."""
    return {
        **({"name": name} if name else {}),
        **({"needs": needs} if needs else {}),
        **({"transform": list(transform)} if transform else {}),
        "mark": {"type": kind, **mark},
        "encoding": encoding,
    }


def names_axis() -> Spec:
    """Return the channel of the names of rows, in the order of the rows."""
    return {"field": "name", "type": "nominal", "sort": None, "title": None}


def curves(y_title: str | None, colour: Spec, *, bands: bool = True) -> Spec:
    """Return panels of curves over train steps: bands, tooltips, marks at curves that end early.

    Fields of rows: step, value, low, high, name; `raw`, the value before smoothing; `faint`, True
    for a seed behind the mean; `cut` and `collapsed`, in the last row of such a curve. `edge`: the
    end of the axis, in rows whose value lies beyond it; `leaves`, True in the first such row of a
    curve; `depth`, a text in one of them.
    """
    x = quantity("step", STEP_TITLE) | {"axis": {"tickCount": 5}}
    y = quantity("value", y_title) | {"axis": {"tickCount": 5}}
    own = {"color": colour["color"]}
    quiet = {"x": x, "detail": {"field": "name"}, **own}
    inside = {"calculate": "isValid(datum.edge) ? datum.edge : datum.value", "as": "inside"}
    at_edge = {"x": x, "y": {**y, "field": "inside"}}
    between = {**quiet, "y": {**y, "field": "low"}, "y2": {"field": "high"}}
    above = {"test": "datum.value > datum.edge", "value": "triangle-up"}
    beyond = {
        **own,
        **at_edge,
        "shape": {"condition": above, "value": "triangle-down"},
        "tooltip": reading(("name", "of"), ("value", "leaves the axis to", ".3g")),
    }
    said = reading(
        ("name", "of"),
        ("step", STEP_TITLE, ",.6~g"),
        ("value", "mean", ".3g"),
        ("interval", "95 % interval"),
    )
    interval = interval_text("interval", "low", "high", "none: too few seeds")
    cut = {**own, **at_edge, "tooltip": reading(("name", "of"), ("cut", "cut"))}
    faint, collapsed = {"filter": "datum.faint"}, {"filter": "datum.collapsed"}
    dot = {"filled": True, "opacity": 1}
    band = layer("area", between, valid("low"), name="band", needs="low", opacity=0.15, clip=True)
    layers = [
        *([band] if bands else []),
        layer(
            "line",
            {**quiet, "y": {**y, "field": "raw"}},
            valid("raw"),
            name="measured",
            needs="raw",
            strokeWidth=1,
            opacity=0.35,
            clip=True,
        ),
        layer(
            "line",
            {**quiet, "y": y},
            faint,
            name="seed",
            needs="faint",
            strokeWidth=0.8,
            opacity=0.45,
            clip=True,
        ),
        layer(
            "line",
            {**quiet, **colour, "y": y},
            {"filter": "!datum.faint"},
            name="curve",
            strokeWidth=2,
            clip=True,
        ),
        layer(
            "point",
            {**own, **at_edge},
            collapsed,
            inside,
            name="collapsed",
            needs="collapsed",
            shape="cross",
            angle=45,
            size=90,
            **dot,
        ),
        layer(
            "point",
            beyond,
            {"filter": "datum.leaves"},
            inside,
            name="beyond",
            needs="leaves",
            size=50,
            **dot,
        ),
        layer(
            "text",
            {**at_edge, "text": {"field": "depth"}},
            valid("depth"),
            inside,
            name="depth",
            needs="depth",
            align="right",
            dx=-8,
            dy=-7,
            fontSize=10,
        ),
        layer(
            "point",
            {**own, "x": x, "y": y, "tooltip": said},
            valid("value"),
            {"filter": "!datum.faint"},
            interval,
            name="reading",
            opacity=0,
            size=160,
            filled=True,
            clip=True,
        ),
        layer(
            "point",
            cut,
            {"filter": "datum.cut"},
            inside,
            name="cut",
            needs="cut",
            shape="circle",
            size=80,
            strokeWidth=2,
        ),
    ]
    return faceted({"height": HEIGHT, "layer": layers})


def dots(looks: Looks) -> Spec:
    """Return rows of dots with intervals, the first row on top.

    Fields of rows: name, term, value, low, high; `from` and `to`, a wider interval; `each`, the
    values of the seeds; `base`, True for a model before training.
    """
    x = quantity("value", None) | {"axis": {"tickCount": 4}}
    y = names_axis()
    colour = series("term", looks, "color", legend=False)
    both = {**series("term", looks, "shape", legend=False), **colour, "x": x, "y": y}

    def between(low: str, high: str, **mark: Any) -> Spec:
        ends = {"x": {**x, "field": low}, "x2": {"field": high}}
        return layer("rule", {**colour, "y": y, **ends}, valid(low), needs=low, **mark)

    base = {"filter": "datum.base"}
    of_base = reading(("name", "of"), ("value", "mean", ".3g"), ("note", "note"))
    said = reading(
        ("name", "of"),
        ("value", "mean", ".3g"),
        ("interval", "95 % interval"),
        ("items", "over items"),
        ("seeds", "seeds"),
    )
    layers = [
        layer("point", {"y": y}, opacity=0),
        between("from", "to", strokeWidth=8, opacity=0.25),
        between("low", "high", strokeWidth=2),
        layer(
            "tick",
            {**colour, "y": y, "x": {**x, "field": "each"}},
            valid("each"),
            {"flatten": ["each"]},
            name="seeds",
            needs="each",
            thickness=1.2,
            size=10,
            opacity=0.7,
        ),
        layer(
            "rule",
            {"x": x},
            base,
            name="before training",
            needs="base",
            strokeDash=[2, 3],
            color="$none",
        ),
        layer(
            "point",
            {"x": x, "y": y, "tooltip": of_base},
            base,
            name="star",
            needs="base",
            shape=STAR,
            size=110,
            filled=True,
            opacity=1,
            color="$none",
        ),
        layer(
            "point",
            {**both, "tooltip": said},
            valid("value"),
            {"filter": "!datum.base"},
            interval_text("interval", "low", "high", "none: one seed"),
            interval_text("items", "from", "to", "none"),
            name="dot",
            filled=True,
            size=70,
            opacity=1,
        ),
    ]
    return {"height": {"step": STEP}, "layer": layers}


def field_map(columns: Sequence[str], rows: Sequence[str], x_title: str, y_title: str) -> Spec:
    """Return a map of fields with colours and texts.

    Fields of rows: column and row (indices from 0, the lowest row first); z, the colour from 0 to
    1; text, written in the field; says, its tooltip.
    """

    def axis(field: str, names: Sequence[str], title: str) -> Spec:
        scale = {"domain": [-0.5, len(names) - 0.5], "nice": False, "zero": False}
        axis = {
            "values": list(range(len(names))),
            "labelExpr": f"{json.dumps(list(names))}[datum.value]",
            "grid": False,
            "ticks": False,
        }
        return quantity(field, title) | {"scale": scale, "axis": axis}

    x, y = axis("column", columns, x_title), axis("row", rows, y_title)
    edges = [
        {"calculate": f"datum.{field} {sign} 0.48", "as": name}
        for field in ("column", "row")
        for sign, name in (("-", f"{field}_from"), ("+", f"{field}_to"))
    ]
    paint = {"domain": [0, 0.5, 1], "range": ["$stable", "$unstable", "$collapsed"]}
    painted = {
        "x": {**x, "field": "column_from"},
        "x2": {"field": "column_to"},
        "y": {**y, "field": "row_from"},
        "y2": {"field": "row_to"},
        "color": {"field": "z", "type": "quantitative", "scale": paint, "legend": None},
        "tooltip": reading(("says", "seeds")),
    }
    light = {"test": "datum.z > 0.75", "value": "#ffffff"}
    ink = {"condition": light, "value": "#16191d"}
    written = {"x": x, "y": y, "text": {"field": "text"}, "color": ink}
    layers = [
        layer("rect", painted, valid("z")),
        layer("text", written, valid("z"), fontSize=11),
    ]
    return {"height": 42 * max(3, len(rows)), "transform": edges, "layer": layers}
