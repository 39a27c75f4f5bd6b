"""Colours, dashes and marks of charts, in one table for light and dark backgrounds.

A specification names a colour as `$c0`, and a `Theme` maps the name to a colour. Series have Okabe
and Ito's colours, made darker or lighter to contrast with the background. Each series also has a
dash and a shape, so that a reader can distinguish series without colours.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Spec = dict[str, Any]
Theme = Mapping[str, str]
"""`$name` -> colour."""

RAMP_STEPS = 24
_RAMPS = {
    "light": ("#14448f", "#7a2a9e", "#c2347a", "#e06a1a"),
    "dark": ("#5d9bf5", "#b58af2", "#f07fb4", "#ffc07a"),
}
"""Colours of ordered values. Brightness shows the order."""


def _mixed(stops: Sequence[str], share: float) -> str:
    """Return the colour at a position from 0 to 1 along evenly spaced stops."""
    at = share * (len(stops) - 1)
    pair = stops[int(at)], stops[min(int(at) + 1, len(stops) - 1)]
    one, other = ([int(text[i : i + 2], 16) for i in (1, 3, 5)] for text in pair)
    values = (round(a + (at - int(at)) * (b - a)) for a, b in zip(one, other, strict=True))
    return "#" + "".join(f"{v:02x}" for v in values)


def _theme(ramp: str, **colours: str) -> Theme:
    steps = {f"$r{i}": _mixed(_RAMPS[ramp], i / (RAMP_STEPS - 1)) for i in range(RAMP_STEPS)}
    return {f"${name}": colour for name, colour in colours.items()} | steps


_LIGHT = {
    "c0": "#0072b2",
    "c1": "#b87700",
    "c2": "#cf5800",
    "c3": "#b2568b",
    "c4": "#2f86b8",
    "c5": "#00835f",
    "none": "#5b626b",
    "grid": "#e6e8eb",
    "line": "#d5d9de",
    "stable": "#e3f4ee",
    "unstable": "#ffe08a",
    "collapsed": "#a33f00",
    "banner": "#7a4b00",
}
LIGHT = _theme("light", **_LIGHT, text="#16191d")
PRINT = _theme("light", **_LIGHT, text="#000000")
DARK = _theme(
    "dark",
    c0="#4fa8e6",
    c1="#e69f00",
    c2="#f07f3c",
    c3="#d98bb6",
    c4="#8ccdf2",
    c5="#2fc08f",
    none="#b4bac2",
    grid="#2b3036",
    line="#3a4047",
    stable="#e3f4ee",
    unstable="#ffe08a",
    collapsed="#a33f00",
    banner="#e8c25a",
    text="#eceef0",
)
THEMES: Mapping[str, Theme] = {"light": LIGHT, "dark": DARK, "print": PRINT}

COLOURS = tuple(f"$c{i}" for i in range(6))
DASHES: tuple[list[int], ...] = (
    [1, 0],
    [7, 3],
    [2, 2],
    [8, 3, 2, 3],
    [12, 3],
    [12, 3, 2, 3],
)
SHAPES = ("circle", "square", "diamond", "triangle-up", "cross", "triangle-down")
STAR = (
    "M0,-1L0.225,-0.309L0.951,-0.309L0.363,0.118L0.588,0.809L0,0.382L-0.588,0.809"
    "L-0.363,0.118L-0.951,-0.309L-0.225,-0.309Z"
)
NO_KL = "no KL"
USUAL = ("k1.reward", "k3.loss", "k1.loss", "k3.reward", "k1.both", "k3.both")
"""Configurations of the paper. Each has the same look in every figure."""


def series_looks(names: Iterable[str]) -> Mapping[str, Spec]:
    """Return the scales of colour, dash and shape of series without an order.

    `no KL` is grey. A configuration of the paper has the same look in every figure.
    """
    known = [name for name in dict.fromkeys(names) if name != NO_KL]
    order = list(dict.fromkeys([*USUAL, *known])) if set(known) & set(USUAL) else known
    places = range(len(order))
    dashes = [DASHES[(i if i < 6 else i + 1) % 6] for i in places]
    return {
        "color": _scale(order, [COLOURS[i % 6] for i in places], "$none"),
        "strokeDash": _scale(order, dashes, [1, 0]),
        "shape": _scale(order, [SHAPES[i % 6] for i in places], "circle"),
    }


def ordered_looks(names: Sequence[str]) -> Mapping[str, Spec]:
    """Return the scales of ordered series, such as betas: colours of one ramp. `no KL` is grey."""
    order = [name for name in names if name != NO_KL]
    last = max(len(order) - 1, 1)
    ramp = [f"$r{round(i * (RAMP_STEPS - 1) / last)}" for i in range(len(order))]
    dashes = [DASHES[i % 6] for i in range(len(order))]
    return {
        "color": _scale(order, ramp, "$none"),
        "strokeDash": _scale(order, dashes, [1, 0]),
    }


def _scale(names: Sequence[str], values: Sequence[Any], none: Any) -> Spec:
    return {"domain": [NO_KL, *names], "range": [none, *values]}


def config() -> Spec:
    """Return the common look of all charts as Vega-Lite's `config`."""
    return {
        "background": "transparent",
        "font": "Liberation Sans, Arial, sans-serif",
        "aria": False,
        "padding": 4,
        "view": {"stroke": None},
        "axis": {
            "gridColor": "$grid",
            "domainColor": "$line",
            "tickColor": "$line",
            "labelColor": "$text",
            "titleColor": "$text",
            "labelFontSize": 11,
            "titleFontSize": 11,
            "titleFontWeight": "normal",
            "titlePadding": 6,
            "labelFlush": False,
            "labelOverlap": True,
            "labelSeparation": 5,
        },
        "header": {
            "labelColor": "$text",
            "labelFontSize": 12,
            "labelFontWeight": "bold",
            "labelPadding": 4,
            "title": None,
        },
        "legend": {
            "orient": "top",
            "direction": "horizontal",
            "labelColor": "$text",
            "titleColor": "$text",
            "labelFontSize": 11,
            "labelLimit": 240,
            "symbolSize": 260,
            "symbolStrokeWidth": 2.2,
            "columnPadding": 14,
            "offset": 8,
            "layout": {"top": {"direction": "vertical", "anchor": "start", "margin": 4}},
        },
        "title": {"color": "$text", "fontSize": 12, "anchor": "start", "subtitleColor": "$text"},
    }
