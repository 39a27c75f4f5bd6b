"""The paper's Fig. 1, as plain data and as charts, for the report and `orch lab`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.charts.files import converted, sheet, svg_of
from orchestrator.charts.marks import STEP, ChartView, Rows, quantity, reading, series
from orchestrator.charts.style import Spec
from orchestrator.errors import LaboratoryError
from orchestrator.estimators import entry
from orchestrator.kl.configuration import FIGURE_1, KlConfiguration, extended
from orchestrator.kl.laboratory import (
    PARAMETERS,
    Exact,
    FloatTable,
    LabPolicy,
    LabSetting,
    ToyPolicy,
    estimates,
    exact,
)
from orchestrator.kl.montecarlo import MonteCarloEstimate, monte_carlo
from orchestrator.kl.objectives import gradients

DEFAULT = LabSetting(ToyPolicy(-0.33, -0.082), ToyPolicy(1.17, 0.037), num_tokens=32)
"""orch's parameters. With them every statement of the paper on its Fig. 1 is true."""

CAVEAT = (
    "The paper does not state the parameters of its Fig. 1; the defaults are ours. Which one "
    "has the highest bias or the lowest variance depends on them (orch lab --sweep); that k1 in "
    "the reward is unbiased does not."
)


def figure1(
    setting: LabSetting = DEFAULT,
    *,
    configurations: Sequence[KlConfiguration] = (),
    trials: int = 200,
    sequences: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """Return bias and variance of every configuration's gradient, exact and by Monte-Carlo.

    Both are for each parameter of the policy, a and b. A bias is |expected gradient - gradient of
    the sequence reverse KL|. A variance is the variance of a trial's mean over `sequences`
    sequences. Without configurations, use `extended()`.
    """
    configurations = configurations or extended()
    truth = gradients(setting)["sequence_reverse_kl"]
    statistics = exact(setting, configurations)
    sampled = monte_carlo(setting, configurations, trials=trials, sequences=sequences, seed=seed)
    z = sampled.z(statistics)
    rows = [
        {
            "label": configuration.label,
            "estimator": configuration.estimator,
            "placement": configuration.placement,
            "ratio": configuration.ratio,
            "in_paper": configuration in FIGURE_1,
            **{p: _numbers(statistics, sampled, z, i, j, truth) for j, p in enumerate(PARAMETERS)},
        }
        for i, configuration in enumerate(configurations)
    ]
    values = estimates(setting)
    return {
        "setting": _setting(setting),
        "caveat": CAVEAT,
        "trials": trials,
        "sequences": sequences,
        "seed": seed,
        "reverse_kl": estimates(LabSetting(*_target(setting)))["k1"][0],
        "estimates": {k: {"mean": m, "variance": v} for k, (m, v) in values.items()},
        "truth": dict(zip(PARAMETERS, map(float, truth), strict=True)),
        "configurations": rows,
    }


def _target(setting: LabSetting) -> tuple[LabPolicy, LabPolicy, int]:
    return setting.policy, setting.reference, setting.num_tokens


def _numbers(
    statistics: Exact, sampled: MonteCarloEstimate, z: FloatTable, i: int, j: int, truth: FloatTable
) -> dict[str, float]:
    noise = 1e-12 * float(statistics.magnitude[i, j])
    bias = abs(float(statistics.mean[i, j] - truth[j]))
    return {
        "mean": float(statistics.mean[i, j]),
        "bias": bias if bias > noise else 0.0,
        "variance": float(statistics.variance[i, j]) / sampled.sequences,
        "sampled_mean": float(sampled.mean[i, j]),
        "sampled_bias": float(sampled.bias(truth)[i, j]),
        "sampled_variance": float(sampled.variance[i, j]),
        "z": float(z[i, j]),
    }


def _setting(setting: LabSetting) -> dict[str, Any]:
    rollout = setting.rollout
    return {
        "policy": setting.policy._asdict(),
        "reference": setting.reference._asdict(),
        "rollout": rollout._asdict() if rollout is not None else None,
        "num_tokens": setting.num_tokens,
    }


FORMATS = (".png", ".pdf", ".svg")
PLACES = {"reward": "$c0", "loss": "$c2", "both": "$c5"}
PANELS = (("bias", "a"), ("variance", "a"), ("bias", "b"), ("variance", "b"))
FILE_WIDTH = 1500
"""Width of Fig. 1 in a file, in pixels."""


def gradient_views(rows: Sequence[Mapping[str, Any]], title: str = "") -> list[ChartView]:
    """Return charts of bias and variance on log axes, with one row per configuration.

    Filled dots are exact and rings are sampled. A bias of exactly zero has no dot. rows: the
    `configurations` of `figure1`, or of a report's `data["laboratory"]`.
    """
    return [_gradient_view(rows, *panel, title) for panel in PANELS]


def _gradient_view(
    rows: Sequence[Mapping[str, Any]], statistic: str, parameter: str, title: str
) -> ChartView:
    drawn: Rows = [
        {
            "name": row["label"],
            "placement": row["placement"].replace("reward_and_loss", "both"),
            "kind": kind,
            "value": row[parameter][key] or None,
        }
        for row in rows
        for kind, key in (("exact", statistic), ("sampled", f"sampled_{statistic}"))
    ]
    x = quantity("value", None, type="log")
    x["axis"] = {"format": "~e", "tickCount": 4}
    y: Spec = {"field": "name", "type": "nominal", "sort": None, "title": None}
    looks = {"color": {"domain": list(PLACES), "range": list(PLACES.values())}}
    colour = series("placement", looks, "color", dots=True)
    tooltip = reading(("name", "of"), ("kind", "is"), ("value", statistic, ".3g"))
    layers: list[Spec] = [{"mark": {"type": "point", "opacity": 0}, "encoding": {"y": y}}]
    for kind, size in (("exact", 50), ("sampled", 80)):
        layers.append(
            {
                "name": kind,
                "transform": [{"filter": f"datum.value > 0 && datum.kind === '{kind}'"}],
                "mark": {"type": "point", "filled": kind == "exact", "opacity": 1, "size": size},
                "encoding": {"x": x, "y": y, **colour, "tooltip": tooltip},
            }
        )
    of = f"{title}: {statistic}" if title else statistic
    return {
        "title": f"{of} of the gradient, d/d{parameter}",
        "spec": {"height": {"step": STEP - 3}, "layer": layers},
        "least": 260,
        "names": "name",
        "rows": drawn,
    }


def draw(data: dict[str, Any], path: Path) -> None:
    """Draw Fig. 1 as PNG, PDF or SVG: the paper's four configurations, and below them all.

    Raise LaboratoryError for another file format, or if the file cannot be written.
    """
    _check_format(path)
    four = [row for row in data["configurations"] if row["in_paper"]]
    views = [
        *gradient_views(four, "The paper's four"),
        *gradient_views(data["configurations"], "All"),
    ]
    notes = (_setting_text(data), data["caveat"])
    _write(views, path, title=_title(data), notes=notes, columns=len(PANELS), width=FILE_WIDTH)


def draw_term(estimator: str, path: Path) -> None:
    """Draw penalty and gradient of an estimator and of the reverse KL against the log-ratio.

    Raise LaboratoryError for an estimator over the vocabulary, for another file format, or if the
    file cannot be written.
    """
    form = entry(estimator)
    if form.is_of_vocabulary:
        raise LaboratoryError(
            f"{estimator} is averaged over the vocabulary: it is no curve over a sampled token's "
            "log-ratio; draw k1 or k2, whose average it is"
        )
    _check_format(path)
    x = np.linspace(-2.5, 2.5, 201)
    gradient = form.slope(x) + (form.value(x) if form.form == "ratio_attached" else 0.0)
    views = [
        _term_view(title, estimator, x, drawn)
        for title, drawn in (
            ("penalty (nats)", form.value(x)),
            ("factor of grad log q in the loss", gradient),
        )
    ]
    _write(views, path, columns=2, width=820)


TRUE = "reverse KL: k1, and its gradient x"


def _term_view(title: str, estimator: str, x: FloatTable, mine: FloatTable) -> ChartView:
    names = (TRUE, estimator)
    looks: dict[str, Spec] = {
        "color": {"domain": list(names), "range": ["$text", "$c2"]},
        "strokeDash": {"domain": list(names), "range": [[5, 4], [1, 0]]},
    }
    rows: Rows = [
        {"name": name, "x": float(at), "value": float(y)}
        for name, values in zip(names, (x, mine), strict=True)
        for at, y in zip(x, values, strict=True)
    ]
    spec: Spec = {
        "height": 250,
        "mark": {"type": "line", "clip": True, "strokeWidth": 2},
        "encoding": {
            "x": {**quantity("x", "log q/p of the sampled token"), "axis": {"tickCount": 5}},
            "y": quantity("value", None, domain=[-4, 6]),
            **series("name", looks, "color", "strokeDash"),
        },
    }
    return {"title": title, "spec": spec, "least": 260, "rows": rows}


def _check_format(path: Path) -> None:
    if path.suffix.lower() not in FORMATS:
        raise LaboratoryError(
            f"a figure is written as {', '.join(FORMATS)}; got '{path.name}': change its ending"
        )


def _write(views: Sequence[ChartView], path: Path, **layout: Any) -> None:
    drawn = svg_of(sheet([(view, view["rows"]) for view in views], **layout))
    content = converted(drawn, path.suffix.lower().removeprefix("."))
    try:
        path.write_bytes(content)
    except OSError as error:
        raise LaboratoryError(f"cannot write the figure to '{path}': {error.strerror}") from error


def _title(data: dict[str, Any]) -> str:
    return (
        f"Gradient of the KL term: {data['trials']} trials of {data['sequences']} sequences of "
        f"T = {data['setting']['num_tokens']}; filled: exact, rings: sampled"
    )


def _setting_text(data: dict[str, Any]) -> str:
    policies = (
        f"{name}: a = {values['a']:g}, b = {values['b']:g}"
        for name, values in data["setting"].items()
        if isinstance(values, dict)
    )
    return f"{'   '.join(policies)}   KL = {data['reverse_kl']:.3g} nats"
