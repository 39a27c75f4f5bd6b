"""Charts that no choice of the reader changes. Each takes its rows, and returns a view.

`looks` are the scales by which a chart tells KL terms apart (`series_looks`).
"""

from collections.abc import Sequence
from typing import Any

from orchestrator.charts.marks import (
    ChartView,
    Looks,
    Rows,
    faceted,
    layer,
    quantity,
    reading,
    series,
    valid,
)
from orchestrator.charts.style import Spec

SMALL, USUAL_WIDTH = 190, 260
"""Minimum width of a panel in pixels: in a redrawn figure, and in other figures."""


def _axis(field: str, title: str | None, ticks: int, **more: Any) -> Spec:
    """Return the channel of a number. `more`: properties of its scale, or the axis's `format`."""
    axis = {"format": more.pop("format")} if "format" in more else {}
    return quantity(field, title, **more) | {"axis": {"tickCount": ticks, **axis}}


def _dots(encoding: Spec, tooltip: Sequence[Spec], size: int, *transform: Spec) -> Spec:
    encoding = {**encoding, "tooltip": list(tooltip)}
    return layer("point", encoding, *transform, name="dot", filled=True, size=size, opacity=1)


def distance_chart(rows: Rows, looks: Looks, x_title: str) -> ChartView:
    """Return accuracy against KL to the reference: a line for each term, a point for each beta."""
    x = _axis("x", f"{x_title}, log scale (nats)", 4, type="log", format=".3~g")
    y = _axis("value", None, 4)
    colour = series("term", looks, "color", dots=True)
    own = {**colour, "x": x, "y": y}
    seeds = {**own, "y": {**y, "field": "seed"}}
    ordered = {**own, "order": {"field": "beta", "type": "quantitative"}}
    shapes = series("term", looks, "shape", dots=True)
    of_beta = valid("value"), valid("beta")
    tooltip = reading(
        ("name", "of"), ("value", "accuracy", ".3f"), ("x", "KL", ".3g"), ("seeds", _TRAINED)
    )
    small: Spec = {"filled": True, "size": 14, "opacity": 0.45}
    text = {**own, "text": {"field": "label"}}
    layers = [
        layer("point", seeds, valid("seed"), needs="seed", **small),
        layer("line", ordered, *of_beta, strokeWidth=1.6),
        _dots({**own, **shapes}, tooltip, 55, valid("value")),
        layer("text", text, *of_beta, name="label", dy=-9, fontSize=10),
    ]
    spec = faceted({"height": 150, "layer": layers})
    return {"title": "", "spec": spec, "least": SMALL, "rows": rows}


_TRAINED = "seeds that trained"
