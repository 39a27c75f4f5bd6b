"""Prepare the data of a report's figures."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from orchestrator.analysis.configurations import Configuration
from orchestrator.analysis.runs import LearningCurve
from orchestrator.analysis.sentences import metric_title as label_of
from orchestrator.analysis.stats import Estimate
from orchestrator.charts.style import NO_KL, USUAL
from orchestrator.metrics.names import METRICS

DIGITS = 4
EXACT_POWERS = 22
"""10 ** n is exact in floating point up to this n."""


CURVES = (
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
    "rollout/staleness_mean",
    "train/beta_effective",
)
"""The curves that a reader can select, in this order."""


MAX_VALUES, MIN_POINTS = 240_000, 40
"""Maximum number of values in all curves of all seeds, and minimum number of points per curve.
Beyond the maximum, steps are left out evenly; the first and the last step remain."""


def figure_data(
    configurations: Sequence[Configuration],
    main: Sequence[str | None] = (),
    studies: Mapping[str, Mapping[str, str]] | None = None,
) -> dict[str, Any]:
    """Return the data of figures: metrics, grids of steps, and one entry for each configuration.

    main: the metrics of the main result; None is left out. Series are thinned to MAX_VALUES values
    in total, with at least MIN_POINTS points per curve.
    """
    grids: dict[tuple[int, ...], int] = {}
    settings, varied = setting_names(configurations), varied_axes(configurations)
    curves = [(c, m) for c in configurations for m in CURVES if has_curve(c, m)]
    seeds = sum(len(c.curves[m].seeds) for c, m in curves)
    points = max(MIN_POINTS, MAX_VALUES // max(seeds, 1))
    rank = {id(c): i for i, c in enumerate(sorted(configurations, key=_place))}
    plain = [
        {
            "study": c.study,
            "setting": setting,
            "kl": c.kl,
            "beta": c.beta,
            "name": c.name,
            "seeds": len(c.runs),
            "steps": c.stability.num_train_steps,
            "model": c.traits.get("model", ""),
            "backend": c.traits.get("backend", ""),
            "axes": {axis: v for axis, v in c.traits.items() if axis in varied[c.study]},
            "cells": [[run.seed, run.record.cell.id] for run in c.runs],
            "finals": {
                m: _final_data(c, m, e) for m, e in c.finals.items() if m.startswith("eval/")
            },
            "curves": {
                m: _curve_data(c.curves[m], grids, points) for m in CURVES if has_curve(c, m)
            },
            "collapsed": [c.collapse.count, c.collapse.n],
            "term": NO_KL if c.kl == "none" else c.kl,
            "line": NO_KL if c.kl == "none" or c.beta is None else f"β {c.beta:g}",
            "cut": ", ".join(
                f"seed {run.seed} is {run.record.state}"
                for run in c.runs
                if run.series and run.record.state != "succeeded"
            ),
            "rank": rank[id(c)],
            "predicted": rounded(c.predicted),
        }
        for c, setting in zip(configurations, settings, strict=True)
    ]
    used = {
        m for c in configurations for m in (*c.finals, *c.curves) if m in CURVES or m[:5] == "eval/"
    }
    return {
        "metrics": {m: axis_label(m) for m in sorted(used)},
        "main": [m for m in main if m],
        "studies": dict(studies or {}),
        "grids": [list(steps) for steps in grids],
        "thinned": _thinned_from(curves, points),
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
    text = label_of(metric)
    return f"{text} ({unit})" if unit else text


def varied_axes(configurations: Sequence[Configuration]) -> dict[str, set[str]]:
    """Return study -> the axes in which its settings differ.

    Leave out the library, because the page has a separate selection for it, and the KL term.
    """
    values: dict[str, dict[str, set[str]]] = {c.study: {} for c in configurations}
    for c in configurations:
        for axis, value in c.traits.items():
            values[c.study].setdefault(axis, set()).add(value)
    return {
        study: {axis for axis, taken in axes.items() if len(taken) > 1 and axis[:7] != "backend"}
        for study, axes in values.items()
    }


def setting_names(configurations: Sequence[Configuration]) -> list[str]:
    """Return the name of each configuration's setting within its study, such as `qwen2.5-7b`."""
    values: dict[str, dict[str, set[str]]] = {}
    for c in configurations:
        for trait, value in c.traits.items():
            values.setdefault(c.study, {}).setdefault(trait, set()).add(value)
    return [_setting_name(c, values.get(c.study, {})) for c in configurations]


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
    at = kept_points(len(curve.steps), points)
    steps = tuple(curve.steps[i] for i in at)
    plain: dict[str, Any] = {
        "g": grids.setdefault(steps, len(grids)),
        "s": {str(seed): _rounded_at(v, at) for seed, v in curve.seeds.items()},
    }
    if len(curve.seeds) > 1:
        for key, values in (("m", curve.mean), ("l", curve.low), ("h", curve.high)):
            plain[key] = _rounded_at(values, at)
    return plain


def kept_points(count: int, most: int) -> list[int]:
    """Return the indices of the points to draw: all, or `most` evenly spaced, with both ends."""
    if count <= most:
        return list(range(count))
    return [round(i * (count - 1) / (most - 1)) for i in range(most)]


def _thinned_from(curves: Sequence[tuple[Configuration, str]], points: int) -> list[int] | None:
    """Return [steps of the longest measured curve, points drawn of the longest drawn curve].

    Return None if no curve is thinned.
    """
    most = max(
        (max((len(run.series.get(m, ())) for run in c.runs), default=0) for c, m in curves),
        default=0,
    )
    shown = max((min(points, len(c.curves[m].steps)) for c, m in curves), default=0)
    return [most, shown] if shown < most else None


def rounded(value: float | None) -> float | int | None:
    """Return a number with DIGITS significant digits, or None if it is not finite."""
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.{DIGITS}g}")
    return int(rounded) if rounded.is_integer() else rounded


def _rounded_at(values: Sequence[float], at: Sequence[int]) -> list[float | None]:
    """Return `rounded` of the values at these indices, computed with NumPy."""
    import numpy as np

    x = np.asarray(values, dtype=float)[list(at)]
    known = np.isfinite(x) & (x != 0)
    size = np.where(known, np.abs(x), 1.0)
    scale = np.floor(np.log10(size)) - (DIGITS - 1)
    # A whole number times or over an exact power of ten is rounded once, as `rounded` is. For other
    # powers call `rounded` itself.
    exact = np.abs(scale) <= EXACT_POWERS
    power = 10.0 ** np.where(exact, np.abs(scale), 0.0)
    digits_only = np.rint(np.where(scale < 0, x * power, x / power))
    decimals = np.where(scale < 0, digits_only / power, digits_only * power)
    return [
        None if v != v else rounded(was) if not kept else v
        for v, was, kept in zip(
            np.where(np.isfinite(x), np.where(known, decimals, 0.0), np.nan).tolist(),
            x.tolist(),
            exact.tolist(),
            strict=True,
        )
    ]


def with_setting_names(configurations: Iterable[Configuration]) -> list[tuple[Configuration, str]]:
    """Return each configuration with the name of its setting."""
    every = list(configurations)
    return list(zip(every, setting_names(every), strict=True))
