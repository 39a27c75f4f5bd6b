"""Figures of a report: their data, and the views of charts that show it, as plain data.

The page draws the views in the browser with the rows that its reader selects.
dashboards/pictures.py writes the same views as files. Both take rows from `tables`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from orchestrator.analysis.configurations import Configuration
from orchestrator.analysis.runs import LearningCurve, spread_indices
from orchestrator.analysis.stats import Estimate
from orchestrator.analysis.text import metric_title
from orchestrator.charts.marks import ChartView, Rows, curves, dots, series
from orchestrator.charts.style import NO_KL, USUAL, Spec, ordered_looks, series_looks
from orchestrator.metrics.names import METRICS
from orchestrator.report.model import Figure, Panel, Report
from orchestrator.report.plots import SMALL, USUAL_WIDTH

DIGITS = 4


PAGE_CURVES = (
    "eval/validation/mean",
    "eval/in_domain/mean",
    "eval/out_of_domain/mean",
    "eval/accuracy_in_domain",
    "eval/accuracy_out_of_domain",
    "train/reward_mean",
    "train/kl_reference",
    "eval/kl_reverse",
    "eval/kl_forward",
    "eval/entropy",
    "train/entropy",
    "train/grad_norm",
    "rollout/response_tokens",
    "rollout/cut_share",
    "rollout/staleness_mean",
    "train/beta_effective",
)
"""The curves that a reader can select, in this order."""


MAX_VALUES, MIN_POINTS = 240_000, 40
"""Maximum number of values in all curves of all seeds, and minimum number of points per curve.
Beyond the maximum, steps are left out evenly; the first and the last step remain."""


def figure_data(
    configurations: Sequence[Configuration],
    main: Sequence[str | None],
    studies: Mapping[str, Mapping[str, str]] | None,
    more: Sequence[str],
) -> dict[str, Any]:
    """Return the data of figures: metrics, grids of steps, and one entry for each configuration.

    main: the metrics of the main result; None is left out. more: metrics of curves, beside
    PAGE_CURVES. Series are thinned to MAX_VALUES values
    in total, with at least MIN_POINTS points per curve.
    """
    grids: dict[tuple[int, ...], int] = {}
    settings, varied = setting_names(configurations), varied_axes(configurations)
    drawn = tuple(dict.fromkeys((*PAGE_CURVES, *more)))
    curves = [(c, m) for c in configurations for m in drawn if has_curve(c, m)]
    seeds = sum(len(c.curves[m].seeds) for c, m in curves)
    points = max(MIN_POINTS, MAX_VALUES // max(seeds, 1))
    # The steps of the longest measured curve, and the points of the longest drawn one.
    most = max((len(run.series.get(m, ())) for c, m in curves for run in c.runs), default=0)
    shown = max((min(points, len(c.curves[m].steps)) for c, m in curves), default=0)
    rank = {id(c): i for i, c in enumerate(sorted(configurations, key=_place))}
    plain = [
        {
            "study": c.study,
            "setting": setting,
            "kl": c.kl,
            "beta": c.beta,
            "name": c.name,
            "seeds": len(c.runs),
            "steps": c.num_train_steps,
            "model": c.traits.get("model", ""),
            "backend": c.traits.get("backend", ""),
            "axes": {axis: v for axis, v in c.traits.items() if axis in varied[c.study]},
            "cells": [[run.seed, run.record.cell.id] for run in c.runs],
            "finals": {
                m: _final_data(c, m, e)
                for m, e in c.finals.items()
                if m.startswith("eval/") or m in main
            },
            "curves": {
                m: _curve_data(c.curves[m], grids, points) for m in drawn if has_curve(c, m)
            },
            "collapsed": [c.collapse.count, c.collapse.n],
            "term": term_of(c),
            "line": NO_KL if c.kl == "none" or c.beta is None else f"β {c.beta:g}",
            "cut": ", ".join(
                f"seed {run.seed} is {run.record.state}"
                for run in c.runs
                if run.series and run.record.state != "succeeded"
            ),
            "rank": rank[id(c)],
        }
        for c, setting in zip(configurations, settings, strict=True)
    ]
    used = {
        m
        for c in configurations
        for m in (*c.finals, *c.curves)
        if m in drawn or m in main or m[:5] == "eval/"
    }
    return {
        "metrics": {m: axis_label(m) for m in sorted(used)},
        "main": [m for m in main if m],
        "studies": dict(studies or {}),
        "grids": [list(steps) for steps in grids],
        "thinned": [most, shown] if shown < most else None,
        "configurations": plain,
    }


def _place(c: Configuration) -> tuple[int, str, float]:
    """Return the sort key of a configuration in figures: the paper's KL terms first, then beta."""
    order = ("none", *USUAL)
    known = order.index(c.kl) if c.kl in order else len(order)
    return known, c.kl, -1.0 if c.beta is None else c.beta


def has_curve(c: Configuration, metric: str) -> bool:
    """Return True if the metric's curve has two or more points. One point is a final value."""
    return metric in c.curves and len(c.curves[metric].steps) > 1


def axis_label(metric: str) -> str:
    """Return a metric's name for an axis, with its unit."""
    unit = METRICS[metric].unit if metric in METRICS else ""
    text = metric_title(metric)
    return f"{text} ({unit})" if unit else text


def varied_axes(configurations: Sequence[Configuration]) -> dict[str, set[str]]:
    """Return study -> the axes in which its settings differ.

    Leave out the library, because the page has a separate selection for it, and the KL term.
    """
    return {
        study: {axis for axis, taken in axes.items() if len(taken) > 1 and axis[:7] != "backend"}
        for study, axes in _trait_values(configurations).items()
    }


def _trait_values(configurations: Iterable[Configuration]) -> dict[str, dict[str, set[str]]]:
    """Return study -> trait -> the values that its configurations have."""
    values: dict[str, dict[str, set[str]]] = {}
    for c in configurations:
        traits = values.setdefault(c.study, {})
        for trait, value in c.traits.items():
            traits.setdefault(trait, set()).add(value)
    return values


def setting_names(configurations: Sequence[Configuration]) -> list[str]:
    """Return the name of each configuration's setting within its study, such as `qwen2.5-7b`."""
    values = _trait_values(configurations)
    return [_setting_name(c, values[c.study]) for c in configurations]


def _setting_name(c: Configuration, values: Mapping[str, set[str]]) -> str:
    named = {
        trait: v for trait, v in c.traits.items() if trait == "model" or len(values[trait]) > 1
    }
    if "backend" in named and (version := named.pop("backend.version", "")):
        named["backend"] = _releases(named["backend"], version)
    if "model" in named and "data" in named and len(values["data"]) == len(values["model"]):
        return f"{named.pop('model')} on {named.pop('data')}" + _rest(named)
    return named.pop("model", "") + _rest(named)


def _releases(backends: str, versions: str) -> str:
    """Return `verl 0.9.1 | micro` for `verl | micro` and `0.9.1 | none`."""
    names, numbers = backends.split(" | "), versions.split(" | ")
    if len(names) != len(numbers):
        return f"{backends} {versions}"
    texts = (f"{n} {v}".removesuffix(" none") for n, v in zip(names, numbers, strict=True))
    return " | ".join(texts)


def _rest(traits: Mapping[str, str]) -> str:
    return "".join(f", {trait} {value}" for trait, value in traits.items())


def _final_data(c: Configuration, metric: str, final: Estimate) -> list[Any]:
    seeds = {str(seed): rounded(value) for seed, value in c.by_seed(metric).items()}
    items = c.finals_over_items.get(metric)
    wide = (items.low, items.high) if items else (None, None)
    return [*map(rounded, (final.mean, final.low, final.high)), seeds, *map(rounded, wide)]


def _curve_data(
    curve: LearningCurve, grids: dict[tuple[int, ...], int], points: int
) -> dict[str, Any]:
    at = spread_indices(len(curve.steps), points)
    steps = tuple(curve.steps[i] for i in at)
    plain: dict[str, Any] = {"g": grids.setdefault(steps, len(grids))}
    # Few seeds are drawn each, without a band; one is its own mean.
    band = (curve.low, curve.high) if len(curve.seeds) > FEW_SEEDS else ()
    over_seeds = (curve.mean, *band) if len(curve.seeds) > 1 else ()
    every = [[rounded(one[i]) for i in at] for one in (*curve.seeds.values(), *over_seeds)]
    plain["s"] = dict(zip(map(str, curve.seeds), every, strict=False))
    plain |= zip("mlh", every[len(curve.seeds) :], strict=False)
    return plain


def rounded(value: float | None, digits: int = DIGITS) -> float | int | None:
    """Return a number with so many significant digits, or None if it is not finite."""
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() else rounded


FigureData = Mapping[str, Any]
Chosen = Sequence[int]
"""Indices of `Report.data["configurations"]`."""
FEW_SEEDS = 5
"""Up to so many seeds are drawn each: an interval from so few is wider than what can happen."""
MAX_BANDS = 8
"""Maximum number of curves in a panel that are drawn with bands."""
METRIC = "$metric"
"""Placeholder for the name and the label of the metric that the reader selects."""
MAIN_FINALS = 2
"""Number of final values that are drawn at once; the others are drawn on demand."""


def views(figure: Figure, data: FigureData) -> list[ChartView]:
    """Return the views of a figure, or an empty list if nothing was measured for it."""
    return list(figure.views or _VIEWS[figure.kind](figure, data))


def every_figure(report: Report) -> Iterator[Figure]:
    """Yield the first figure, the redrawn figures of a publication, then those of sections."""
    if report.first is not None:
        yield report.first
    yield from (plate.figure for plate in report.plates if plate.figure is not None)
    yield from (figure for section in report.sections for figure in section.figures)


def tables(data: FigureData) -> dict[str, Rows]:
    """Return table name -> rows, for the views without `rows`.

    `at` of a row is the index of its configuration. Curves have no table: `data["configurations"]`
    has them.
    """
    every = data["configurations"]
    by_table: dict[str, Rows] = {}
    metrics = dict.fromkeys(metric for c in every for metric in c["finals"])
    for at, c in sorted(enumerate(every), key=lambda pair: pair[1]["rank"]):
        for metric in metrics:
            if final := c["finals"].get(metric):
                row = _final_row(c, at, final)
            elif c["collapsed"][0] == c["seeds"]:  # it has a name in the figure, and no mark
                row = {"at": at, "name": f"{c['name']}: all collapsed", "each": []}
            else:
                continue
            by_table.setdefault(f"finals {metric}", []).append(row)
    for base in data.get("baselines", ()):
        for metric, value in base["finals"].items():
            row = {"model": base["model"], "name": base["name"], "note": base["note"]}
            row |= {"base": True, "value": value, "term": NO_KL}
            by_table.setdefault(f"finals {metric}", []).append(row)
    return by_table


def _final_row(c: FigureData, at: int, final: Sequence[Any]) -> dict[str, Any]:
    value, low, high, seeds, wide_low, wide_high = final
    return {
        "at": at,
        "value": value,
        "low": low,
        "high": high,
        "from": wide_low,
        "to": wide_high,
        "each": list(seeds.values()),
        "seeds": f"{len(seeds)} of {c['seeds']}",
    }


def rows_of(
    view: ChartView, data: FigureData, every: Mapping[str, Rows], chosen: Chosen, metric: str = ""
) -> Rows:
    """Return a view's rows for the chosen configurations.

    every: the result of `tables`. metric: the value of the placeholder METRIC.
    dashboards/figures.js does the same in the browser.
    """
    if "rows" in view:
        return view["rows"]
    configurations = data["configurations"]
    kept = view.get("at", chosen)
    kind, _, name = view["table"].replace(METRIC, metric).partition(" ")
    if kind != "curves":
        models = {configurations[i]["model"] for i in kept}
        own = set(kept)
        rows = [r for r in every.get(view["table"], ()) if r.get("at") in own]
        base = [r for r in every.get(view["table"], ()) if r.get("model") in models]
        return [_named(configurations[r["at"]]) | r for r in rows] + (base if rows else [])
    rows = []
    for title, members in _panels(view, configurations, kept, name):
        for i in members:
            rows += [r | {"panel": title} for r in _curve_rows(data, i, name)]
    return _bounded(rows, configurations)


def _panels(
    view: ChartView, configurations: Sequence[FigureData], kept: Chosen, metric: str
) -> Iterator[tuple[str, Chosen]]:
    """Yield each panel's title and configurations. Those without a KL term are in every panel."""
    if "panels" in view:
        yield from ((title, at) for title, at in view["panels"])
        return
    known = [i for i in kept if metric in configurations[i]["curves"]]
    terms = dict.fromkeys(configurations[i]["term"] for i in known)
    several = [term for term in terms if term != NO_KL] or list(terms)
    for term in several:
        yield term, [i for i in known if configurations[i]["term"] in (term, NO_KL)]


def _named(c: FigureData) -> dict[str, Any]:
    return {"name": c["name"], "term": c["term"], "line": c["line"]}


def _curve_rows(data: FigureData, at: int, metric: str) -> Rows:
    """Return the rows of a configuration's mean, with its seeds if few, or else with its band."""
    c = data["configurations"][at]
    curve = c["curves"][metric]
    steps, seeds = data["grids"][curve["g"]], curve["s"]
    mean = curve.get("m") or next(iter(seeds.values()))
    none = [None] * len(steps)
    few = len(seeds) <= FEW_SEEDS
    low, high = (none, none) if few else (curve.get("l", none), curve.get("h", none))
    # An interval goes no further than values can.
    floor = 0.0 if all(v is None or v >= 0 for one in seeds.values() for v in one) else -math.inf
    rows = [
        _named(c)
        | {"at": at, "step": x, "value": y, "high": b}
        | {"low": None if a is None else max(a, floor)}
        for x, y, a, b in zip(steps, mean, low, high, strict=True)
    ]
    if c["cut"] and steps[-1] < c["steps"]:
        rows[-1]["cut"] = f"step {steps[-1]} of {c['steps']}: {c['cut']}"
    if c["collapsed"][0]:
        rows[-1]["collapsed"] = True
    if not few or len(seeds) < 2:
        return rows
    faint = [
        _named(c)
        | {"name": f"{c['name']}, seed {seed}", "at": at, "step": x, "value": y}
        | {"faint": True}
        for seed, values in seeds.items()
        for x, y in zip(steps, values, strict=True)
    ]
    return faint + rows


def _bounded(rows: Rows, configurations: Sequence[FigureData]) -> Rows:
    """Return rows in which configurations with a collapsed seed do not set the axis.

    It ends a quarter of its length beyond the values of the others. Every value stays: a row beyond
    the axis has its end as `edge`, and marks.curves has what shows it.
    """
    numbers = [r for r in rows if r["value"] is not None]
    values = [r["value"] for r in numbers if not configurations[r["at"]]["collapsed"][0]]
    if not values or min(values) == max(values):
        return rows
    room = (max(values) - min(values)) / 4
    low, high = min(values) - room, max(values) + room
    last: dict[tuple[str, bool], dict[str, Any]] = {}
    beyond: set[tuple[str, str]] = set()
    for row in numbers:
        if low <= row["value"] <= high:
            continue
        row["edge"] = min(high, max(low, row["value"]))
        if (curve := (row["panel"], row["name"])) not in beyond and not row.get("faint"):
            row["leaves"] = True
        beyond.add(curve)
        side = (row["panel"], row["value"] > high)
        if side not in last or abs(row["value"] - low) >= abs(last[side]["value"] - low):
            last[side] = row
    for (_, above), row in last.items():
        row["depth"] = f"{'up' if above else 'down'} to {row['value']:.3g}"
    return rows


# ---------------------------------------------------------------- looks of configurations


def looks_of(configurations: Iterable[Configuration]) -> Mapping[str, Spec]:
    """Return the scales that tell the KL terms of these configurations apart."""
    return series_looks([term_of(c) for c in configurations])


def term_of(c: Configuration) -> str:
    """Return a configuration's KL term as figures name it: `k1.reward`, or `no KL`."""
    return NO_KL if c.kl == "none" else c.kl


def _by_term(data: FigureData) -> Mapping[str, Spec]:
    return series_looks([c["term"] for c in data["configurations"]])


def _by_beta(data: FigureData) -> Mapping[str, Spec]:
    betas = sorted({c["beta"] for c in data["configurations"] if c["beta"] is not None})
    return ordered_looks([f"β {beta:g}" for beta in betas])


def _colours(data: FigureData, tell: str) -> Spec:
    """Return the channels that distinguish curves by `line` (β), by `term`, or by `both`."""
    if tell == "line":
        return series("line", _by_beta(data), "color", "strokeDash")
    if tell == "term":
        return series("term", _by_term(data), "color", "strokeDash")
    return series("term", _by_term(data), "color") | series("line", _by_beta(data), "strokeDash")


# ---------------------------------------------------------------- figures of one setting


def _curves(figure: Figure, data: FigureData) -> Iterator[ChartView]:
    """Yield views of one metric, selected by the reader, with panels by KL term, beta or axis."""
    if not any(m in c["curves"] for m in figure.metrics for c in data["configurations"]):
        return
    for variant, tell in (("kl", "line"), ("beta", "term"), ("group", "both")):
        yield {
            "title": "",
            "spec": curves(METRIC, _colours(data, tell)),
            "least": USUAL_WIDTH,
            "table": f"curves {METRIC}",
            "variant": variant,
        }


def _measures(figure: Figure, data: FigureData) -> Iterator[ChartView]:
    """Yield one view for each measure, with panels by KL term."""
    for metric in figure.metrics:
        if any(metric in c["curves"] for c in data["configurations"]):
            yield {
                "title": data["metrics"][metric],
                "spec": curves(None, _colours(data, "line")),
                "least": USUAL_WIDTH,
                "table": f"curves {metric}",
                "variant": "kl",
            }


def _finals(figure: Figure, data: FigureData) -> Iterator[ChartView]:
    spec = dots(_by_term(data))
    for i, metric in enumerate(figure.metrics):
        if any(metric in c["finals"] for c in data["configurations"]):
            one: ChartView = {
                "title": data["metrics"][metric],
                "spec": spec,
                "least": USUAL_WIDTH,
                "names": "name",
                "table": f"finals {metric}",
            }
            yield one | {"extra": True} if i >= MAIN_FINALS else one


# ---------------------------------------------------------------- figures that no choice changes


def _redrawn(figure: Figure, data: FigureData) -> Iterator[ChartView]:
    every = data["configurations"]
    members = [[every[i] for i in panel.at] for panel in figure.panels]
    one_term = all(len({c["term"] for c in own} - {NO_KL}) < 2 for own in members)
    betas = {c["beta"] for own in members for c in own} - {None}
    tell = "line" if one_term else "term" if len(betas) < 2 else "both"

    def kind(panel: Panel) -> tuple[str, str]:
        return panel.draws, panel.metric

    for (draws, metric), same in groupby(figure.panels, key=kind):
        panels = list(same)
        if draws == "curves":
            few = max(len(panel.at) for panel in panels) <= MAX_BANDS
            yield {
                "title": "",
                # Studies may have different numbers of train steps.
                "spec": curves(short(data["metrics"][metric]), _colours(data, tell), bands=few)
                | {"resolve": {"scale": {"x": "independent"}}},
                "least": SMALL,
                "table": f"curves {metric}",
                "panels": [(panel.title, list(panel.at)) for panel in panels],
            }
            continue
        for panel in panels:
            yield {
                "title": panel.title,
                "spec": dots(_by_term(data)),
                "least": SMALL,
                "names": "name",
                "table": f"finals {metric}",
                "at": list(panel.at),
            }


def short(label: str) -> str:
    """Return a label up to its first comma or parenthesis."""
    return label.split(",")[0].split("(")[0].strip()


_VIEWS: Mapping[str, Callable[[Figure, FigureData], Iterator[ChartView]]] = {
    "curves": _curves,
    "measures": _measures,
    "finals": _finals,
    "redrawn": _redrawn,
}
