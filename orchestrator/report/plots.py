"""Charts that no choice of the reader changes. Each takes its rows, and returns a view.

`looks` are the scales by which a chart tells KL terms apart (`series_looks`).
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from orchestrator.charts.marks import (
    STEP,
    ChartView,
    Looks,
    Rows,
    faceted,
    field_map,
    interval_text,
    quantity,
    reading,
    series,
)
from orchestrator.charts.style import Spec, series_looks

SMALL, USUAL_WIDTH = 190, 260
"""Minimum width of a panel in pixels: in a redrawn figure, and in other figures."""
OURS, THEIRS = "ours, with 95 % interval", "published"


def _axis(field: str, title: str | None, ticks: int, **more: Any) -> Spec:
    """Return the channel of a number. `more`: properties of its scale, or the axis's `format`."""
    axis = {"format": more.pop("format")} if "format" in more else {}
    return quantity(field, title, **more) | {"axis": {"tickCount": ticks, **axis}}


def _dots(encoding: Spec, tooltip: Sequence[Spec], size: int, *transform: Spec) -> Spec:
    return {
        "name": "dot",
        **({"transform": list(transform)} if transform else {}),
        "mark": {"type": "point", "filled": True, "size": size, "opacity": 1},
        "encoding": {**encoding, "tooltip": list(tooltip)},
    }


def _intervals(encoding: Spec, axis: str, **mark: Any) -> Spec:
    """Return a layer of lines along an axis, from `low` to `high` of the rows that have them."""
    ends = {axis: {**encoding[axis], "field": "low"}, f"{axis}2": {"field": "high"}}
    return {
        "needs": "low",
        "transform": [{"filter": "isValid(datum.low)"}],
        "mark": {"type": "rule", **mark},
        "encoding": {**encoding, **ends},
    }


def distance_chart(rows: Rows, looks: Looks, x_title: str) -> ChartView:
    """Return accuracy against KL to the reference: a line for each term, a point for each beta."""
    x = _axis("x", f"{x_title}, log scale (nats)", 4, type="log", format=".3~g")
    y = _axis("value", None, 4)
    colour = series("term", looks, "color", dots=True)
    own = {**colour, "x": x, "y": y}
    known = {"filter": "isValid(datum.value)"}
    tooltip = reading(
        ("name", "of"), ("value", "accuracy", ".3f"), ("x", "KL", ".3g"), ("seeds", _TRAINED)
    )
    layers: list[Spec] = [
        {
            "needs": "seed",
            "transform": [{"filter": "isValid(datum.seed)"}],
            "mark": {"type": "point", "filled": True, "size": 14, "opacity": 0.45},
            "encoding": {**colour, "x": x, "y": {**y, "field": "seed"}},
        },
        {
            "transform": [known, {"filter": "isValid(datum.beta)"}],
            "mark": {"type": "line", "strokeWidth": 1.6},
            "encoding": {**own, "order": {"field": "beta", "type": "quantitative"}},
        },
        _dots({**own, **series("term", looks, "shape", dots=True)}, tooltip, 55, known),
        {
            "name": "label",
            "transform": [known, {"filter": "isValid(datum.beta)"}],
            "mark": {"type": "text", "dy": -9, "fontSize": 10},
            "encoding": {**own, "text": {"field": "label"}},
        },
    ]
    spec = faceted({"height": 150, "layer": layers})
    return {"title": "", "spec": spec, "least": SMALL, "rows": rows}


_TRAINED = "seeds that trained"


def prediction_chart(rows: Rows, looks: Looks, title: str) -> ChartView:
    """Return observed over predicted values, with the diagonal and intervals."""
    ends = [row[key] for row in rows for key in ("x", "value", "low", "high")]
    known = [v for v in ends if v is not None]
    domain = [min(known) - 0.03, max(known) + 0.03]
    x, y = (
        _axis(field, name, 6, domain=domain)
        for field, name in (("x", "predicted"), ("value", "observed"))
    )
    colour = series("term", looks, "color", dots=True)
    diagonal: Spec = {
        "data": {"values": [{"x": end, "value": end} for end in domain]},
        "mark": {"type": "line", "strokeDash": [5, 4], "strokeWidth": 1, "color": "$none"},
        "encoding": {"x": x, "y": y},
    }
    tooltip = reading(
        ("of", "of"),
        ("x", "predicted", ".3f"),
        ("value", "observed", ".3f"),
        ("interval", "95 % interval"),
    )
    shown = {**colour, **series("term", looks, "shape", dots=True), "x": x, "y": y}
    layers = [
        diagonal,
        _intervals({**colour, "x": x, "y": y}, "y", strokeWidth=1.5),
        _dots(shown, tooltip, 80, interval_text("interval", "low", "high", "none: one seed")),
    ]
    spec: Spec = {"height": 380, "layer": layers}
    return {"title": title, "spec": spec, "least": USUAL_WIDTH, "most": 500, "rows": rows}


def published_chart(rows: Rows) -> ChartView:
    """Return our numbers with their intervals, and a publication's, a row a claim."""
    x = _axis("value", "relative improvement (%)", 8, zero=True)
    y = {"field": "name", "type": "nominal", "sort": None, "title": None}
    looks = {
        "color": {"domain": [OURS, THEIRS], "range": ["$c0", "$c2"]},
        "shape": {"domain": [OURS, THEIRS], "range": ["circle", "diamond"]},
    }
    shown = {**series("whose", looks, "color", "shape", dots=True), "x": x, "y": y}
    tooltip = reading(("whose", "whose"), ("value", "%", ".3g"), ("says", "claim"))
    layers = [
        _intervals({"y": y, "x": x}, "x", strokeWidth=2, color="$c0"),
        _dots(shown, tooltip, 90),
    ]
    return {
        "title": "",
        "spec": {"height": {"step": STEP + 11}, "layer": layers},
        "least": USUAL_WIDTH,
        "most": 850,
        "names": "name",
        "rows": rows,
    }


def trial_chart(rows: Rows, title: str, x_title: str, y_title: str) -> ChartView:
    """Return a dot for each trial of searches, over β. Fields: x, value, name, of."""
    looks = series_looks([row["name"] for row in rows])
    x, y = _axis("x", x_title, 5, type="log"), quantity("value", y_title)
    shown = {**series("name", looks, "color", "shape"), "x": x, "y": y}
    tooltip = reading(("name", "of"), ("of", "trial"), ("value", "value", ".4g"))
    spec: Spec = {"height": 220, "layer": [_dots(shown, tooltip, 60)]}
    return {"title": title, "spec": spec, "least": USUAL_WIDTH, "rows": rows}


def lines(
    rows: Rows,
    *,
    title: str = "",
    x_title: str,
    y_title: str | None,
    wide: bool = False,
    panels: bool = False,
) -> ChartView:
    """Return lines of named series. Fields: x, value, name; `thick`, if `wide`."""
    looks = series_looks([row["name"] for row in rows])
    x, y = _axis("x", x_title, 5), quantity("value", y_title)
    own = {**series("name", looks, "color"), "x": x, "y": y}
    thick = {"condition": {"test": "datum.thick", "value": 3.2}, "value": 1.6}
    width = {"strokeWidth": thick} if wide else {}
    tooltip = reading(("name", "of"), ("x", x_title, ",.6~g"), ("value", "value", ".4g"))
    layers: list[Spec] = [
        {
            "mark": {"type": "line", "strokeWidth": 2},
            "encoding": {**own, **series("name", looks, "strokeDash"), **width},
        },
        {
            "name": "reading",
            "transform": [{"filter": "isValid(datum.value)"}],
            "mark": {"type": "point", "filled": True, "size": 60, "opacity": 0},
            "encoding": {**own, "tooltip": tooltip},
        },
    ]
    whole: Spec = {"height": 220, "layer": layers}
    spec = faceted(whole) if panels else whole
    return {"title": title, "spec": spec, "least": USUAL_WIDTH, "rows": rows}


def library_charts(panels: Sequence[Mapping[str, Any]]) -> Iterator[ChartView]:
    """Yield curves by library over rollouts, a panel a question; a view for each metric.

    A panel: {"title", "label": of the metric, "x", "libraries": name -> values}.
    """
    for label, same in groupby(panels, key=lambda one: str(one["label"])):
        rows = [
            {"panel": one["title"], "name": name, "x": x, "value": y}
            for one in same
            for name, values in one["libraries"].items()
            for x, y in zip(one["x"], values, strict=True)
        ]
        yield lines(rows, x_title="rollouts seen", y_title=label, panels=True)


def imported_charts(panels: Sequence[Mapping[str, Any]]) -> Iterator[ChartView]:
    """Yield the panels of `analysis.imported.beside`: curves of imported runs, in bold lines."""
    for one in panels:
        rows = [
            {"name": line["name"], "x": x, "value": y, "thick": line["imported"]}
            for line in one["lines"]
            for x, y in zip(line["x"], line["y"], strict=True)
        ]
        yield lines(rows, title=one["title"], x_title="step", y_title=None, wide=True)


def field_chart(
    rows: Rows, columns: Sequence[str], names: Sequence[str], title: str, x_title: str
) -> ChartView:
    """Return a heat map over β and another setting; see `field_map`."""
    spec = field_map(columns, names, x_title, "β")
    return {"title": title, "spec": spec, "least": USUAL_WIDTH, "rows": rows}
