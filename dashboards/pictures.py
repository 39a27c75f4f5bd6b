"""A report's figures as PNG and PDF files.

Series have Okabe and Ito's colours, and a mark and a dash each.
"""

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple

from dashboards.page import WORDS, axis_bound
from orchestrator.files import write_bytes
from orchestrator.report import Report
from orchestrator.report.model import Figure, Panel

COLOURS = ("#0072b2", "#b87700", "#d55e00", "#b2568b", "#2f86b8", "#00835f")
RAMP = ("#14448f", "#7a2a9e", "#c2347a", "#e06a1a")
MARKS = ("o", "s", "D", "^", "P", "v")
DASHES = ("-", "--", ":", "-.")
USUAL = ("k1.reward", "k3.loss", "k1.loss", "k3.reward", "k1.both", "k3.both")
"""Configurations of the paper, so that each has one look in every picture."""
FONT: Any = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "pdf.fonttype": 3,
}


"""Type 3 fonts: type 42 would be cut down with fontTools, at three times the cost of a picture."""


class SeriesStyle(NamedTuple):
    """Colour, mark and dash of one series."""

    color: str
    mark: str
    dash: str


NO_KL_STYLE = SeriesStyle("#5b626b", "o", "-")


def series_styles(values: Sequence[str]) -> Callable[[str], SeriesStyle]:
    """Return a function from a value to its style. The value `none` is grey."""
    known = [v for v in dict.fromkeys(values) if v != "none"]
    order = list(dict.fromkeys([*USUAL, *known])) if set(known) & set(USUAL) else known

    def of(value: str) -> SeriesStyle:
        if value == "none":
            return NO_KL_STYLE
        i = order.index(value)
        return SeriesStyle(COLOURS[i % 6], MARKS[i % 6], DASHES[i % 4])

    return of


def ramp_styles(values: Sequence[float]) -> Callable[[float | None], SeriesStyle]:
    """Return a function from an ordered value to its style on one colour ramp. None is grey."""
    order = list(values)

    def of(value: Any) -> SeriesStyle:
        if value is None:
            return NO_KL_STYLE
        i = order.index(value)
        at = i / (len(order) - 1) * (len(RAMP) - 1) if len(order) > 1 else 0.0
        one, other = (_rgb(RAMP[min(int(at) + k, len(RAMP) - 1)]) for k in (0, 1))
        mixed = [round(a + (at - int(at)) * (b - a)) for a, b in zip(one, other, strict=True)]
        return SeriesStyle("#" + "".join(f"{v:02x}" for v in mixed), MARKS[i % 6], DASHES[i % 4])

    return of


def _rgb(text: str) -> list[int]:
    return [int(text[i : i + 2], 16) for i in (1, 3, 5)]


# Building blocks of pictures: panels, lines with bands, dots with intervals.


WIDTH = 10.0
"""Inches."""
FigureData = Mapping[str, Any]


def escape_math(text: str) -> str:
    """Return text with `$` escaped, so that matplotlib does not read it as mathematics."""
    return text.replace("$", r"\$")


def panels(
    count: int, columns: int = 3, height: float = 2.4, *, rows_of: int = 0, side: float = 0.45
) -> Any:
    """Return a matplotlib figure, and a list of its `count` axes.

    rows_of: number of rows of a dot plot. side: inches to the left of each axes, for labels.
    Positions are computed, because finding them by drawing costs more than the drawing.
    """
    from matplotlib.figure import Figure as Canvas

    columns = min(columns, count)
    rows = -(-count // columns)
    tall = max(height, 0.35 + 0.19 * rows_of)
    width = WIDTH if columns > 1 else 0.72 * WIDTH
    top, bottom, right, between = 0.75, 0.62, 0.1 if rows_of else 1.5, 0.72
    total = top + bottom + rows * tall + (rows - 1) * between
    canvas = Canvas(figsize=(width, total))
    each = (width - right - columns * side) / columns
    axes = []
    for i in range(count):
        row, column = divmod(i, columns)
        left = side + column * (each + side)
        low = bottom + (rows - 1 - row) * (tall + between)
        axes.append(canvas.add_axes((left / width, low / total, each / width, tall / total)))
    return canvas, axes


def as_floats(values: Sequence[float | None]) -> list[float]:
    """Return the values as floats, with NaN for None."""
    return [float("nan") if v is None else v for v in values]


def draw_curve(
    at: Any,
    data: FigureData,
    c: FigureData,
    metric: str,
    look: SeriesStyle,
    name: str,
    *,
    band: bool = True,
) -> None:
    """Draw the mean of a curve over its steps and, if it has one, the band of its interval.

    A ring marks the end of a curve that an unfinished seed cuts short.
    """
    curve = c["curves"][metric]
    x = data["grids"][curve["g"]]
    mean = as_floats(curve.get("m") or next(iter(curve["s"].values())))
    if "l" in curve and band:
        at.fill_between(
            x, as_floats(curve["l"]), as_floats(curve["h"]), color=look.color, alpha=0.14, lw=0
        )
    at.plot(x, mean, look.dash, color=look.color, lw=1.5, label=escape_math(name))
    if c["open"] and x[-1] < c["steps"]:
        at.plot(x[-1:], mean[-1:], "o", mfc="none", color=look.color, ms=6)


def error_bars(rows: Sequence[Sequence[float | None]]) -> list[list[float]]:
    """Return the lengths of intervals below and above the values, as matplotlib's xerr.

    rows: [value, low, high] each. A bound that is not known has length 0.
    """
    below = [0.0 if r[1] is None or r[0] is None else max(0.0, r[0] - r[1]) for r in rows]
    above = [0.0 if r[2] is None or r[0] is None else max(0.0, r[2] - r[0]) for r in rows]
    return [below, above]


def dot_plot(
    at: Any,
    rows: Sequence[tuple[str, Any, SeriesStyle, Any]],
    before: Sequence[tuple[str, float | None]] = (),
) -> None:
    """Draw rows of dots with intervals, the first row on top.

    Models before training are stars below the rows.
    """
    names = [*(name for name, *_ in rows), *(name for name, _ in before)]
    for i, (_, final, look, wide) in enumerate(rows):
        place = len(names) - 1 - i
        if final is None or final[0] is None:
            continue
        if wide and wide[0] is not None:
            at.plot(wide, [place, place], color=look.color, lw=6, alpha=0.25, solid_capstyle="butt")
        at.errorbar(
            [final[0]],
            [place],
            xerr=error_bars([final]),
            fmt=look.mark,
            color=look.color,
            ms=5,
            capsize=2,
            lw=1.2,
        )
    for i, (_, value) in enumerate(before):
        if value is not None:
            at.plot([value], [len(before) - 1 - i], "*", color="#5b626b", ms=8)
            at.axvline(value, color="#5b626b", lw=0.8, ls=":")
    at.set_yticks(range(len(names)), [escape_math(name) for name in reversed(names)])
    at.set_ylim(-0.7, len(names) - 0.3)


def share_y(axes: Sequence[Any]) -> None:
    """Give all axes the same range of y."""
    low, high = min(a.get_ylim()[0] for a in axes), max(a.get_ylim()[1] for a in axes)
    for at in axes:
        at.set_ylim(low, high)


def legend(canvas: Any, axes: Sequence[Any]) -> None:
    """Draw one legend for all axes of a figure, each name once."""
    known: dict[str, Any] = {}
    for at in axes:
        for handle, name in zip(*at.get_legend_handles_labels(), strict=True):
            known.setdefault(name, handle)
    if known:
        canvas.legend(known.values(), known.keys(), loc="center right", fontsize=7, frameon=False)


# Each figure of a report as PNG and PDF, from the same data as the figure on the page.
#
# Figures of single settings are one picture a study and setting; the others are one picture each.
# Colours are Okabe and Ito's; marks and dashes distinguish the same series.


FORMATS: Mapping[str, dict[str, Any]] = {
    "png": {"Software": None},
    "pdf": {"Creator": None, "Producer": None, "CreationDate": None},
}
"""Ending -> what matplotlib would write into the file of itself and the time."""
DPI = 110
LEAST_SPAN = 0.1
"""Of an axis of final accuracies: one seed's 0.89 and 0.91 must not look far apart."""
MAX_BANDS = 8
"""More lines than this in one panel are drawn without their bands, as on the page."""
Drawn = tuple[str, Any]
"""A file's name without its ending, and a matplotlib figure."""


def pictures(report: Report | None, folder: Path) -> dict[str, tuple[str, ...]]:
    """Write a report's pictures to `folder`; return figure id -> picture names without endings.

    Remove every other PNG and PDF file of the folder. Without a report, remove all of them.
    """
    written: dict[str, tuple[str, ...]] = {}
    if report is not None:
        from matplotlib import rc_context

        with rc_context(FONT):
            page = one_page(report)
        if page is not None:
            written["claims"] = (_write("one-page", page, folder),)
        plates = [plate.figure for plate in report.plates if plate.figure is not None]
        for figure in (*plates, *(f for section in report.sections for f in section.figures)):
            names = []
            for name, drawn in draw_figure(figure, report):
                names.append(_write(name, drawn, folder))
            written[figure.id] = tuple(names)
    kept = {f"{name}.{ending}" for each in written.values() for name in each for ending in FORMATS}
    for path in folder.glob("*"):
        if path.suffix[1:] in FORMATS and path.name not in kept:
            path.unlink()
    return written


def _write(name: str, drawn: Any, folder: Path) -> str:
    """Write one picture in every format. Return its name."""
    for ending, stamp in FORMATS.items():
        held = io.BytesIO()
        drawn.savefig(held, format=ending, dpi=DPI, metadata=stamp)
        write_bytes(folder / f"{name}.{ending}", held.getvalue())
    return name


def draw_figure(figure: Figure, report: Report) -> Iterator[Drawn]:
    """Yield the pictures of one figure. Yield nothing if the figure has no data to draw."""
    from matplotlib import rc_context

    with rc_context(FONT):
        if figure.kind in _OF_SETTING:
            yield from _by_setting(figure, report)
        else:
            canvas = _WHOLE[figure.kind](report.data, figure)
            if canvas is not None:
                _titled(canvas, figure.title, report)
                yield figure.id, canvas


def _by_setting(figure: Figure, report: Report) -> Iterator[Drawn]:
    data = report.data
    every = data["configurations"]
    taken: set[str] = set()
    for study, setting in dict.fromkeys((c["study"], c["setting"]) for c in every):
        own = [c for c in every if (c["study"], c["setting"]) == (study, setting)]
        canvas = _OF_SETTING[figure.kind](data, figure, own)
        if canvas is None:
            continue
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{figure.id}-{study}-{setting}").strip("-.")[:100]
        while name in taken:
            name += "-"
        taken.add(name)
        where = data.get("studies", {}).get(study, {})
        paper = f" ({where['figure']})" if where.get("figure") else ""
        _titled(canvas, f"{figure.title}: {study}{paper}, {setting}", report)
        yield name, canvas


def _titled(canvas: Any, title: str, report: Report) -> None:
    canvas.suptitle(escape_math(title), fontsize=9.5, y=1 - 0.2 / canvas.get_figheight())
    if report.banner:
        canvas.text(
            0.5, 0.004, escape_math(report.banner), ha="center", fontsize=6.5, color="#7a4b00"
        )


# ---------------------------------------------------------------- figures of one setting


def _curves(data: FigureData, figure: Figure, own: Sequence[FigureData]) -> Any:
    metric = next((m for m in figure.metrics if any(m in c["curves"] for c in own)), None)
    if metric is None:
        return None
    own = [c for c in own if metric in c["curves"]]
    base = [c for c in own if c["kl"] == "none"]
    kinds = [k for k in dict.fromkeys(c["kl"] for c in own) if k != "none"]
    betas = sorted({c["beta"] for c in own if c["beta"] is not None})
    look = ramp_styles(betas)
    canvas, axes = panels(len(kinds) or 1, 2 if len(kinds) == 4 else 3)
    for at, kl in zip(axes, kinds or ["none"], strict=True):
        for c in [*base, *(c for c in own if c["kl"] == kl and kl != "none")]:
            name = "no KL" if c["beta"] is None else f"β={c['beta']:g}"
            draw_curve(at, data, c, metric, look(c["beta"]), name)
        at.set_title(escape_math("no KL" if kl == "none" else kl))
        at.set_xlabel("train step")
    axes[0].set_ylabel(escape_math(data["metrics"][metric]))
    share_y(axes)
    legend(canvas, axes)
    return canvas


def _measures(data: FigureData, figure: Figure, own: Sequence[FigureData]) -> Any:
    metrics = [m for m in figure.metrics if any(m in c["curves"] for c in own)]
    if not metrics:
        return None
    kinds = [k for k in dict.fromkeys(c["kl"] for c in own) if k != "none"] or ["none"]
    look = ramp_styles(sorted({c["beta"] for c in own if c["beta"] is not None}))
    canvas, axes = panels(len(metrics) * len(kinds), max(2, len(kinds)), side=0.6)
    for i, metric in enumerate(metrics):
        row = axes[i * len(kinds) : (i + 1) * len(kinds)]
        for at, kl in zip(row, kinds, strict=True):
            for c in own:
                if metric in c["curves"] and c["kl"] in ("none", kl):
                    name = "no KL" if c["beta"] is None else f"β={c['beta']:g}"
                    draw_curve(at, data, c, metric, look(c["beta"]), name)
            at.set_title(escape_math("no KL" if kl == "none" else kl))
            at.set_xlabel("train step")
        row[0].set_ylabel(escape_math(data["metrics"][metric]))
        share_y(row)
    legend(canvas, axes)
    return canvas


def _finals(data: FigureData, figure: Figure, own: Sequence[FigureData]) -> Any:
    metrics = [m for m in figure.metrics[:2] if any(m in c["finals"] for c in own)]
    if not metrics:
        return None
    before = [b for b in data["baselines"] if any(b["model"] == c["model"] for c in own)]
    look = series_styles([c["kl"] for c in own])
    canvas, axes = panels(len(metrics), 2, rows_of=len(own) + len(before), side=1.25)
    for at, metric in zip(axes, metrics, strict=True):
        rows = [(c["name"], c["finals"].get(metric), look(c["kl"])) for c in own]
        dot_plot(
            at,
            [(n, f and f[:3], s, f and f[4:]) for n, f, s in rows],
            [(b["name"], b["finals"].get(metric)) for b in before],
        )
        at.set_title(escape_math(data["metrics"][metric]))
    return canvas


def _stability(data: FigureData, _figure: Figure, own: Sequence[FigureData]) -> Any:
    index = {id(c): i for i, c in enumerate(data["configurations"])}
    look = series_styles([c["kl"] for c in own])
    measured = {
        m["title"]: [(c["name"], m["values"][index[id(c)]], look(c["kl"]), None) for c in own]
        for m in data["stability"].values()
    }
    measured = {title: rows for title, rows in measured.items() if any(r[1] for r in rows)}
    if not measured:
        return None
    canvas, axes = panels(len(measured), rows_of=len(own), side=1.25)
    for at, (title, rows) in zip(axes, measured.items(), strict=True):
        dot_plot(at, rows)
        at.set_title(title)
    return canvas


# ---------------------------------------------------------------- figures of the whole experiment


def _predicted(data: FigureData, figure: Figure) -> Any:
    (metric,) = figure.metrics
    own = [
        c for c in data["configurations"] if c["predicted"] is not None and metric in c["finals"]
    ]
    if not own:
        return None
    look = series_styles([c["kl"] for c in own])
    canvas, (at,) = panels(1, height=5)
    for kl in dict.fromkeys(c["kl"] for c in own):
        members = [c for c in own if c["kl"] == kl]
        x, ends = [c["predicted"] for c in members], [c["finals"][metric] for c in members]
        at.errorbar(
            x,
            [e[0] for e in ends],
            yerr=error_bars([e[:3] for e in ends]),
            fmt=look(kl).mark,
            color=look(kl).color,
            capsize=2,
            lw=1,
            label=escape_math(kl),
        )
    low, high = min(at.get_xlim()[0], at.get_ylim()[0]), max(at.get_xlim()[1], at.get_ylim()[1])
    at.plot([low, high], [low, high], "--", color="#777777", lw=1)
    at.set(xlabel="predicted", ylabel="observed")
    at.legend(fontsize=7)
    return canvas


def _gradients(data: FigureData, figure: Figure) -> Any:
    rows = [r for r in data["laboratory"][::-1] if r["paper"] or "paper" not in figure.metrics]
    canvas, axes = panels(4, 2, rows_of=len(rows), side=1.25)
    shown = [(kind, p) for p in "ab" for kind in ("bias", "variance")]
    for at, (kind, p) in zip(axes, shown, strict=True):
        for key, face in ((kind, "#0072b2"), (f"sampled_{kind}", "none")):
            own = [(r[p][key], i) for i, r in enumerate(rows) if r[p][key] and r[p][key] > 0]
            at.scatter(
                [v for v, _ in own],
                [i for _, i in own],
                facecolors=face,
                edgecolors="#0072b2",
                s=28,
            )
        at.set_xscale("log")
        at.set_yticks(range(len(rows)), [r["label"] for r in rows])
        at.set_title(f"{kind} of the gradient, d/d{p}")
    return canvas


def _published(data: FigureData, _figure: Figure) -> Any:
    rows = [p for p in data["published"] if p["ours"]][::-1]
    if not rows:
        return None
    look = SeriesStyle("#0072b2", "o", "-")
    canvas, (at,) = panels(1, height=0.5 + 0.3 * len(rows), rows_of=1, side=1.6)
    scaled = [[None if v is None else 100 * v for v in p["ours"]] for p in rows]
    dot_plot(at, [(p["name"], s, look, None) for p, s in zip(rows, scaled, strict=True)][::-1])
    at.plot([100 * p["published"] for p in rows], range(len(rows)), "D", color="#d55e00")
    at.set_xlabel("relative improvement (%): circles ours, diamonds published")
    return canvas


def _libraries(data: FigureData, _figure: Figure) -> Any:
    libraries = data["libraries"]
    if not libraries:
        return None
    look = series_styles([name for p in libraries for name in p["libraries"]])
    canvas, axes = panels(len(libraries))
    for at, p in zip(axes, libraries, strict=True):
        for name, values in p["libraries"].items():
            style = look(name)
            at.plot(p["x"], as_floats(values), style.dash, color=style.color, lw=1.4, label=name)
        at.set_title(escape_math(p["title"]))
        at.set_xlabel("rollouts seen")
    axes[0].set_ylabel(escape_math(libraries[0]["label"]))
    share_y(axes)
    legend(canvas, axes)
    return canvas


def _imported(data: FigureData, _figure: Figure) -> Any:
    beside = data.get("imported", ())
    if not beside:
        return None
    look = series_styles([line["name"] for p in beside for line in p["lines"]])
    canvas, axes = panels(len(beside))
    for at, p in zip(axes, beside, strict=True):
        for line in p["lines"]:
            style, width = look(line["name"]), 2.2 if line["imported"] else 1.0
            values = as_floats(line["y"])
            label = line["name"]
            at.plot(line["x"], values, style.dash, color=style.color, lw=width, label=label)
        at.set_title(escape_math(p["title"]))
        at.set_xlabel("step")
    legend(canvas, axes)
    return canvas


def _trials(data: FigureData, _figure: Figure) -> Any:
    drawable = [p for p in data.get("tune", ()) if p["series"]]
    if not drawable:
        return None
    look = series_styles([s["name"] for p in drawable for s in p["series"]])
    canvas, axes = panels(len(drawable))
    for at, p in zip(axes, drawable, strict=True):
        for s in p["series"]:
            style = look(s["name"])
            dash = style.dash if "lines" in s["mode"] else ""
            steps = {"drawstyle": "steps-post"} if p.get("step") else {}
            at.plot(
                s["x"],
                as_floats(s["y"]),
                dash,
                marker=style.mark,
                color=style.color,
                ms=4,
                lw=1.2,
                label=escape_math(s["name"]),
                **steps,
            )
        if p.get("log"):
            at.set_xscale("log")
        at.set(
            title=escape_math(p["title"]),
            xlabel=escape_math(p["xtitle"]),
            ylabel=escape_math(p["ytitle"]),
        )
    legend(canvas, axes)
    return canvas


PHASES = ("#e3f4ee", "#ffe08a", "#a33f00")
"""All seeds stable, all unstable, all collapsed; of the page too."""


def _phases(data: FigureData, _figure: Figure) -> Any:
    maps = data.get("phases", ())
    if not maps:
        return None
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("phases", PHASES)
    canvas, axes = panels(len(maps), side=0.6)
    for at, p in zip(axes, maps, strict=True):
        at.grid(visible=False)
        at.imshow(
            [as_floats(row) for row in p["z"]],
            cmap=colours,
            vmin=0,
            vmax=1,
            aspect="auto",
            origin="lower",
        )
        for row, (texts, severities) in enumerate(zip(p["text"], p["z"], strict=True)):
            for column, (text, z) in enumerate(zip(texts, severities, strict=True)):
                colour = "#ffffff" if z is not None and z > 0.75 else "#16191d"
                at.text(column, row, text, ha="center", va="center", fontsize=6.5, color=colour)
        for column, place in enumerate(p["boundary"]):
            if place is not None:
                at.plot([column - 0.48, column + 0.48], [place, place], color="#16191d", lw=2.5)
        at.set_xticks(range(len(p["x"])), p["x"])
        at.set_yticks(range(len(p["y"])), p["y"])
        at.set_title(escape_math(p["title"]), fontsize=7)
        at.set_xlabel(p["xtitle"])
        at.set_ylabel("β")
    return canvas


def _redrawn(data: FigureData, figure: Figure) -> Any:
    rows = max((len(p.at) for p in figure.panels if p.draws == "finals"), default=0)
    canvas, axes = panels(len(figure.panels), 3, rows_of=rows, side=1.0 if rows else 0.6)
    for at, panel in zip(axes, figure.panels, strict=True):
        draw_panel(at, data, figure, panel)
        label = escape_math(data["metrics"][panel.metric])
        if panel.draws == "finals":
            at.set_xlabel(label)
        else:
            at.set(xlabel="train step", ylabel=label)
        at.set_title(escape_math(panel.title))
    legend(canvas, axes)
    return canvas


def draw_panel(at: Any, data: FigureData, figure: Figure, panel: Panel) -> None:
    """Draw one panel of a redrawn figure, in the looks of the whole figure."""
    every = data["configurations"]
    own = [every[i] for p in figure.panels for i in p.at]
    kinds = [k for k in dict.fromkeys(c["kl"] for c in own) if k != "none"]
    betas = sorted({c["beta"] for c in own if c["beta"] is not None})
    by_kl, by_beta = series_styles(kinds), ramp_styles(betas)
    names = any(len({every[i]["kl"] for i in p.at} - {"none"}) > 1 for p in figure.panels)

    def look(c: FigureData) -> SeriesStyle:
        return by_kl(c["kl"]) if names or c["beta"] is None else by_beta(c["beta"])

    def title(c: FigureData) -> str:
        if c["beta"] is None:
            return "no KL"
        return f"β={c['beta']:g}" if not names else c["kl"] if len(betas) < 2 else str(c["name"])

    chosen = [every[i] for i in panel.at]
    if panel.draws == "finals":
        finals = [(c["name"], c["finals"].get(panel.metric), look(c)) for c in chosen]
        dot_plot(at, [(n, f and f[:3], s, f and f[4:]) for n, f, s in finals])
        low, high = at.get_xlim()
        if high - low < LEAST_SPAN:
            middle = (low + high) / 2
            at.set_xlim(middle - LEAST_SPAN / 2, middle + LEAST_SPAN / 2)
        return
    few = len(chosen) <= MAX_BANDS
    for c in chosen:
        draw_curve(at, data, c, panel.metric, look(c), title(c), band=few)


# ---------------------------------------------------------------- one page to print and to mail

PAGE = (8.27, 11.69)
"""A4, in inches."""
ROW, TOP, EDGE = 0.3, 2.05, 0.55
MOST_CLAIMS, MOST_PLATES = 16, 12
VERDICT_COLOURS = {"supported": "#00694e", "contradicted": "#a33f00"}


def one_page(report: Report) -> Any:
    """Return the finding, the claims and redrawn figures on one A4 page; None without claims."""
    from matplotlib.figure import Figure as Canvas

    if not report.cards:
        return None
    wide, tall = PAGE
    canvas = Canvas(figsize=PAGE)

    def write(x: float, y: float, text: str, size: float = 7.5, **more: Any) -> None:
        canvas.text(x / wide, 1 - y / tall, escape_math(text), fontsize=size, va="top", **more)

    write(EDGE, 0.35, f"{report.name}   {report.banner}", 6.5, color="#7a4b00")
    write(EDGE, 0.52, "\n".join(wrap(report.question or report.name, 82)), 11, weight="bold")
    write(EDGE, 0.98, "\n".join(wrap(report.answer, 105)), 9, weight="bold")
    write(EDGE, 1.36, "\n".join(wrap(report.missing, 130)), 7.5, color="#444444")
    write(EDGE, 1.66, "     ".join(f"{value} {name}" for name, value in report.facts[:3]), 9)
    cards = report.cards[:MOST_CLAIMS]
    ends = axis_bound([card.effect for card in cards if card.effect])
    for i, card in enumerate(cards):
        y = TOP + i * ROW
        where = f" ({card.where})" if card.where else ""
        write(EDGE, y, "\n".join(wrap((card.says or card.statement) + where, 72)[:2]), 7)
        colour = VERDICT_COLOURS.get(card.verdict, "#444444")
        if card.effect:
            at = canvas.add_axes((4.25 / wide, 1 - (y + 0.2) / tall, 1.5 / wide, 0.18 / tall))
            low, high = card.effect.region
            at.axvspan(low, ends if high is None else high, color="#eceef1", lw=0)
            at.axvline(0, color="#888888", lw=0.7)
            values = [[card.effect.value, card.effect.low, card.effect.high]]
            at.errorbar(
                [card.effect.value], [0], xerr=error_bars(values), fmt="o", ms=3.5, color=colour
            )
            at.set(xlim=(-ends, ends), ylim=(-1, 1))
            at.axis("off")
        write(5.85, y, "\n".join(wrap(card.here, 27)[:2]), 6.5, color="#444444")
        write(7.25, y, WORDS[card.verdict], 6.5, color=colour, weight="bold")
    below = TOP + len(cards) * ROW
    more = len(report.cards) - len(cards)
    note = f"Dots: effects with 95 % intervals, from −{ends:g} to {ends:g}; right is as claimed."
    write(EDGE, below, note + (f" {more} more claims are on the page." if more else ""), 6.5)
    plates = [(plate, f) for plate in report.plates if (f := plate.figure) and f.panels]
    height = 1.02
    rows = max(0, min(3, int((tall - below - 0.6) / (height + 0.42))))
    for i, (plate, figure) in enumerate(plates[: min(MOST_PLATES, 4 * rows)]):
        row, column = divmod(i, 4)
        y, x = below + 0.5 + row * (height + 0.42), EDGE + 0.2 + column * 1.85
        at = canvas.add_axes((x / wide, 1 - (y + height) / tall, 1.45 / wide, height / tall))
        draw_panel(at, report.data, figure, figure.panels[0])
        at.set_title(escape_math(f"{plate.number}: {figure.panels[0].title}"), fontsize=6, pad=3)
        at.tick_params(labelsize=5, length=2, pad=1)
        if figure.panels[0].draws == "finals":
            at.set_yticklabels([t.get_text().replace(" β=", "\n") for t in at.get_yticklabels()])
    return canvas


_OF_SETTING: Mapping[str, Callable[[FigureData, Figure, Sequence[FigureData]], Any]] = {
    "curves": _curves,
    "measures": _measures,
    "finals": _finals,
    "stability": _stability,
}
_WHOLE: Mapping[str, Callable[[FigureData, Figure], Any]] = {
    "predicted": _predicted,
    "gradients": _gradients,
    "published": _published,
    "libraries": _libraries,
    "trials": _trials,
    "redrawn": _redrawn,
    "imported": _imported,
    "phases": _phases,
}
