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


def curves(
    y_title: str | None,
    colour: Spec,
    *,
    bands: bool = True,
) -> Spec:
    """Return panels of curves over train steps: bands, tooltips, marks at curves that end early.

    Fields of rows: step, value, low, high, name; `raw`, the value before smoothing; `thin`, True
    for one of many curves; `faint`, True for a seed behind the mean; `cut` and
    `collapsed`, in the last row of such a curve. `edge`: the end of the axis, in rows whose value
    lies beyond it; `leaves`, True in the first such row of a curve; `depth`, a text in one of them.
    """
    x = quantity("step", STEP_TITLE)
    x["axis"] = {"tickCount": 5}
    y = quantity("value", y_title)
    y["axis"] = {"tickCount": 5}
    known = {"filter": "isValid(datum.value)"}
    own = {"color": colour["color"]}
    quiet = {"x": x, "detail": {"field": "name"}, **own}
    inside = {
        "calculate": "isValid(datum.edge) ? datum.edge : datum.value",
        "as": "inside",
    }
    at_edge = {"x": x, "y": {**y, "field": "inside"}}
    band: list[Spec] = [
        {
            "name": "band",
            "needs": "low",
            "transform": [{"filter": "isValid(datum.low)"}],
            "mark": {"type": "area", "opacity": 0.15, "clip": True},
            "encoding": {**quiet, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
        }
    ]
    layers: list[Spec] = [
        *(band if bands else []),
        {
            "name": "measured",
            "needs": "raw",
            "transform": [{"filter": "isValid(datum.raw)"}],
            "mark": {"type": "line", "strokeWidth": 1, "opacity": 0.35, "clip": True},
            "encoding": {**quiet, "y": {**y, "field": "raw"}},
        },
        {
            "name": "seed",
            "needs": "faint",
            "transform": [{"filter": "datum.faint"}],
            "mark": {"type": "line", "strokeWidth": 0.8, "opacity": 0.45, "clip": True},
            "encoding": {**quiet, "y": y},
        },
        {
            "name": "curve",
            "transform": [{"filter": "!datum.faint"}],
            "mark": {"type": "line", "strokeWidth": 2, "clip": True},
            "encoding": {
                **quiet,
                **colour,
                "y": y,
                "opacity": {"condition": {"test": "datum.thin", "value": 0.65}, "value": 1},
            },
        },
        {
            "name": "collapsed",
            "needs": "collapsed",
            "transform": [{"filter": "datum.collapsed"}, inside],
            "mark": {
                "type": "point",
                "shape": "cross",
                "angle": 45,
                "filled": True,
                "opacity": 1,
                "size": 90,
            },
            "encoding": {**own, **at_edge},
        },
        {
            "name": "beyond",
            "needs": "leaves",
            "transform": [{"filter": "datum.leaves"}, inside],
            "mark": {"type": "point", "filled": True, "opacity": 1, "size": 50},
            "encoding": {
                **own,
                **at_edge,
                "shape": {
                    "condition": {"test": "datum.value > datum.edge", "value": "triangle-up"},
                    "value": "triangle-down",
                },
                "tooltip": reading(("name", "of"), ("value", "leaves the axis to", ".3g")),
            },
        },
        {
            "name": "depth",
            "needs": "depth",
            "transform": [{"filter": "isValid(datum.depth)"}, inside],
            "mark": {"type": "text", "align": "right", "dx": -8, "dy": -7, "fontSize": 10},
            "encoding": {**at_edge, "text": {"field": "depth"}},
        },
        {
            "name": "reading",
            "transform": [
                known,
                {"filter": "!datum.faint"},
                interval_text("interval", "low", "high", "none: too few seeds"),
            ],
            "mark": {"type": "point", "opacity": 0, "size": 160, "filled": True, "clip": True},
            "encoding": {
                **own,
                "x": x,
                "y": y,
                "tooltip": reading(
                    ("name", "of"),
                    ("step", STEP_TITLE, ",.6~g"),
                    ("value", "mean", ".3g"),
                    ("interval", "95 % interval"),
                ),
            },
        },
        {
            "name": "cut",
            "needs": "cut",
            "transform": [{"filter": "datum.cut"}, inside],
            "mark": {"type": "point", "shape": "circle", "size": 80, "strokeWidth": 2},
            "encoding": {
                **own,
                **at_edge,
                "tooltip": reading(("name", "of"), ("cut", "cut")),
            },
        },
    ]
    return faceted({"height": HEIGHT, "layer": layers})


def dots(
    looks: Looks,
    *,
    x_title: str | None = None,
    scale: Mapping[str, Any] | None = None,
) -> Spec:
    """Return rows of dots with intervals, the first row on top.

    Fields of rows: name, term, value, low, high; `from` and `to`, a wider interval; `each`, the
    values of the seeds; `base`, True for a model before training. `scale`: properties of the scale
    of values.
    """
    x = quantity("value", x_title, **(scale or {}))
    x["axis"] = {"tickCount": 4}
    y = {"field": "name", "type": "nominal", "sort": None, "title": None}
    colour = series("term", looks, "color", legend=False)
    both = {**series("term", looks, "shape", legend=False), **colour}
    known = {"filter": "isValid(datum.value)"}

    def between(low: str, high: str, mark: Spec) -> Spec:
        return {
            "needs": low,
            "transform": [{"filter": f"isValid(datum.{low})"}],
            "mark": {"type": "rule", **mark},
            "encoding": {**colour, "y": y, "x": {**x, "field": low}, "x2": {"field": high}},
        }

    layers: list[Spec] = [
        {"transform": [known], "mark": {"type": "point", "opacity": 0}, "encoding": {"y": y}},
        between("from", "to", {"strokeWidth": 8, "opacity": 0.25}),
        between("low", "high", {"strokeWidth": 2}),
        {
            "name": "seeds",
            "needs": "each",
            "transform": [{"filter": "isValid(datum.each)"}, {"flatten": ["each"]}],
            "mark": {"type": "tick", "thickness": 1.2, "size": 10, "opacity": 0.7},
            "encoding": {**colour, "y": y, "x": {**x, "field": "each"}},
        },
        {
            "name": "before training",
            "needs": "base",
            "transform": [{"filter": "datum.base"}],
            "mark": {"type": "rule", "strokeDash": [2, 3], "color": "$none"},
            "encoding": {"x": x},
        },
        {
            "name": "star",
            "needs": "base",
            "transform": [{"filter": "datum.base"}],
            "mark": {
                "type": "point",
                "shape": STAR,
                "size": 110,
                "filled": True,
                "opacity": 1,
                "color": "$none",
            },
            "encoding": {
                "x": x,
                "y": y,
                "tooltip": reading(("name", "of"), ("value", "mean", ".3g"), ("note", "note")),
            },
        },
        {
            "name": "dot",
            "transform": [
                known,
                {"filter": "!datum.base"},
                interval_text("interval", "low", "high", "none: one seed"),
                interval_text("items", "from", "to", "none"),
            ],
            "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
            "encoding": {
                **both,
                "x": x,
                "y": y,
                "tooltip": reading(
                    ("name", "of"),
                    ("value", "mean", ".3g"),
                    ("interval", "95 % interval"),
                    ("items", "over items"),
                    ("seeds", "seeds"),
                ),
            },
        },
    ]
    return {"height": {"step": STEP}, "layer": layers}


def field_map(columns: Sequence[str], rows: Sequence[str], x_title: str, y_title: str) -> Spec:
    """Return a map of fields with colours and texts.

    Fields of rows: column and row (indices from 0, the lowest row first); z, the colour from 0 to
    1; text, written in the field; says, its tooltip.
    """

    def axis(field: str, names: Sequence[str], title: str) -> Spec:
        return {
            "field": field,
            "type": "quantitative",
            "title": title,
            "scale": {"domain": [-0.5, len(names) - 0.5], "nice": False, "zero": False},
            "axis": {
                "values": list(range(len(names))),
                "labelExpr": f"{json.dumps(list(names))}[datum.value]",
                "grid": False,
                "ticks": False,
            },
        }

    x, y = axis("column", columns, x_title), axis("row", rows, y_title)
    paint = {"domain": [0, 0.5, 1], "range": ["$stable", "$unstable", "$collapsed"]}
    painted = {"filter": "isValid(datum.z)"}
    edges = [
        {"calculate": f"datum.{field} {sign} 0.48", "as": name}
        for field in ("column", "row")
        for sign, name in (("-", f"{field}_from"), ("+", f"{field}_to"))
    ]
    return {
        "height": 42 * max(3, len(rows)),
        "transform": edges,
        "layer": [
            {
                "transform": [painted],
                "mark": "rect",
                "encoding": {
                    "x": {**x, "field": "column_from"},
                    "x2": {"field": "column_to"},
                    "y": {**y, "field": "row_from"},
                    "y2": {"field": "row_to"},
                    "color": {
                        "field": "z",
                        "type": "quantitative",
                        "scale": paint,
                        "legend": None,
                    },
                    "tooltip": reading(("says", "seeds")),
                },
            },
            {
                "transform": [painted],
                "mark": {"type": "text", "fontSize": 11},
                "encoding": {
                    "x": x,
                    "y": y,
                    "text": {"field": "text"},
                    "color": {
                        "condition": {"test": "datum.z > 0.75", "value": "#ffffff"},
                        "value": "#16191d",
                    },
                },
            },
        ],
    }
