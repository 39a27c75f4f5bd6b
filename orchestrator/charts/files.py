"""Write charts as PNG, PDF and SVG with vl-convert, without a browser or a network."""

import contextlib
import os
import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from orchestrator.charts.marks import ChartView, Rows
from orchestrator.charts.style import LIGHT, Spec, Theme, config
from orchestrator.errors import OrchError
from orchestrator.files import write_bytes

FORMATS = ("png", "pdf", "svg")
PPI = 84
POINTS = 0.75
"""PDF points per pixel."""
LETTER, MARGIN = 6.1, 16
"""Pixels per letter of a row's name, and pixels next to the name."""
GAP = 14


def completed(view: ChartView, rows: Rows, width: int, theme: Theme = LIGHT) -> Spec:
    """Return a view's specification with its rows, a width and a theme's colours.

    dashboards/figures.js does the same in the browser.
    """
    shown: Spec = colored(_within(narrowed(view["spec"], rows), axis_ends(rows)), theme)
    shown["data"] = {"values": rows}
    wide = min(width, view.get("most", width))
    indent = 56.0
    if "names" in view:
        longest = max((len(str(row[view["names"]])) for row in rows), default=0)
        indent = min(LETTER * longest + MARGIN, wide / 2)
    inner = wide - indent - GAP
    if "facet" not in shown:
        return shown | {"width": round(inner)}
    count_of = len({row["panel"] for row in rows})
    columns = max(1, min(count_of, int(inner / view["least"])))
    shown["facet"]["sort"] = list(dict.fromkeys(row["panel"] for row in rows))
    shown["columns"] = columns
    shown["spec"]["width"] = round(inner / columns) - GAP
    return shown


def axis_ends(rows: Rows) -> list[float]:
    """Return the ends of the axis of values if a row lies beyond it, else an empty list."""
    if not any("edge" in row for row in rows):
        return []
    inside = [row.get(e) for row in rows if "edge" not in row for e in ("value", "low", "high")]
    ends = [v for v in (*inside, *(row.get("edge") for row in rows)) if v is not None]
    return [min(ends), max(ends) + (max(ends) - min(ends)) / 40]  # no line is cut in half


OF_VALUES = ("value", "low", "high", "raw", "inside")


def _within(spec: Any, ends: Sequence[float]) -> Any:
    """Return a specification whose axis of values has these ends.

    Without any, no mark is clipped: that takes ten times as long to draw as a PNG.
    """
    if isinstance(spec, list):
        return [_within(each, ends) for each in spec]
    if not isinstance(spec, dict):
        return spec
    kept = spec if ends else {key: value for key, value in spec.items() if key != "clip"}
    inner = {key: _within(value, ends) for key, value in kept.items()}
    if ends and inner.get("field") in OF_VALUES and "scale" in inner:
        inner["scale"] = {**inner["scale"], "domain": list(ends), "nice": False}
    return inner


def narrowed(spec: Any, rows: Rows) -> Any:
    """Return a specification without the layers, scale values and legends that no row needs."""
    if isinstance(spec, list):
        return [narrowed(each, rows) for each in spec]
    if not isinstance(spec, dict):
        return spec
    if "layer" in spec:
        kept_layers = [e for e in spec["layer"] if "needs" not in e or _held(e["needs"], rows)]
        spec = spec | {"layer": [{k: v for k, v in e.items() if k != "needs"} for e in kept_layers]}
    inner = {key: narrowed(value, rows) for key, value in spec.items()}
    scale = inner.get("scale") or {}
    if inner.get("type") == "nominal" and "domain" in scale and "range" in scale:
        present = {row.get(inner["field"]) for row in rows}
        pairs = zip(scale["domain"], scale["range"], strict=True)
        kept = [(name, value) for name, value in pairs if name in present]
        domain = [name for name, _ in kept]
        values = [value for _, value in kept]
        inner["scale"] = {**scale, "domain": domain, "range": values}
    return inner


def _held(field: str, rows: Rows) -> bool:
    return any(row.get(field) not in (None, False) for row in rows)


def colored(spec: Any, theme: Theme) -> Any:
    """Return a specification with the names of a theme replaced by its colours."""
    if isinstance(spec, list):
        return [colored(each, theme) for each in spec]
    if isinstance(spec, dict):
        return {key: colored(value, theme) for key, value in spec.items()}
    return theme.get(spec, spec) if isinstance(spec, str) else spec


def sheet(
    views: Sequence[tuple[ChartView, Rows]],
    *,
    title: str = "",
    notes: Sequence[str] = (),
    columns: int = 1,
    width: int = 960,
    theme: Theme = LIGHT,
) -> Spec:
    """Return one specification for a file: several views in columns, with title and notes."""
    charts = []
    for view, rows in views:
        named = {"title": view["title"]} if view["title"] else {}
        whole = completed(view, rows, round(width / columns) - 10, theme)
        charts.append(without_readings(whole) | named)
    head = {"text": title, "subtitle": list(notes), "fontSize": 13, "subtitleFontSize": 10}
    resolve = {"color": "independent", "strokeDash": "independent", "shape": "independent"}
    whole_config = colored(config(), theme) | {"background": "white", "padding": 12}
    legend = {**whole_config["legend"], "columns": max(1, width // columns // 130)}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        **({"title": head} if title else {}),
        "config": whole_config | {"legend": legend},
        "concat": charts,
        "columns": columns,
        "spacing": 24,
        "resolve": {"scale": resolve, "legend": resolve},
    }


def without_readings(spec: Any) -> Any:
    """Return a specification without tooltips and without names of layers.

    A file cannot show tooltips. In one file, layers with the same name would share their rows.
    """
    if isinstance(spec, list):
        layers = (e for e in spec if not (isinstance(e, dict) and e.get("name") == "reading"))
        return [without_readings(each) for each in layers]
    if not isinstance(spec, dict):
        return spec
    dropped = ("tooltip", "name") if "mark" in spec else ("tooltip",)
    return {
        key: value if key == "data" else without_readings(value)
        for key, value in spec.items()
        if key not in dropped
    }


def svg_of(spec: Spec) -> str:
    """Return a specification drawn as SVG."""
    import vl_convert

    text: str = vl_convert.vegalite_to_svg(spec)
    # Vega numbers what it clips by over all drawings of a process.
    numbers: dict[str, str] = {}
    return re.sub(r"\bclip\d+", lambda m: numbers.setdefault(m[0], f"clip{len(numbers)}"), text)


def converted(svg: str, ending: str) -> bytes:
    """Return an SVG drawing as the bytes of a png, pdf or svg file."""
    import vl_convert

    if ending == "svg":
        return ('<?xml version="1.0" encoding="utf-8"?>\n' + svg).encode()
    if ending == "png":
        png: bytes = vl_convert.svg_to_png(svg, ppi=PPI)
        return png
    pdf: bytes = vl_convert.svg_to_pdf(
        re.sub(r'(width|height)="([\d.]+)"', _in_points, svg, count=2)
    )
    return pdf


def _in_points(size: re.Match[str]) -> str:
    return f'{size[1]}="{float(size[2]) * POINTS:g}"'


def script() -> str:
    """Return the page's script: Vega, Vega-Lite and Vega-Embed in the versions of vl-convert.

    Bundling takes two CPU seconds, so store the script in the user's cache, one file per release.
    """
    import vl_convert

    name = f"vega-{version('vl-convert-python')}.js"
    base = os.environ.get("XDG_CACHE_HOME")
    kept = (Path(base) if base else Path.home() / ".cache") / "orch" / name
    with contextlib.suppress(OSError, ValueError):
        return kept.read_text(encoding="utf-8")
    bundle: Any = vl_convert.javascript_bundle  # its stub requires a snippet; the code does not
    text: str = bundle()
    with contextlib.suppress(OSError, OrchError):  # a read-only home directory
        write_bytes(kept, text.encode())
    return text
