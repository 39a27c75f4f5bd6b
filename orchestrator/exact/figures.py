"""The paper's Fig. 1, as plain data and as charts, for the report and `orch explain --exact`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from orchestrator.charts.files import converted, sheet, svg_of
from orchestrator.charts.gradients import PANELS, gradient_views
from orchestrator.charts.marks import ChartView, Rows, quantity, series
from orchestrator.charts.style import Spec
from orchestrator.errors import LaboratoryError
from orchestrator.estimators import entry
from orchestrator.exact.laboratory import (
    PARAMETERS,
    Exact,
    FloatTable,
    LabSetting,
    ToyPolicy,
    estimates,
    exact,
)
from orchestrator.exact.montecarlo import MonteCarloEstimate, monte_carlo
from orchestrator.exact.objectives import gradients, wide_policy
from orchestrator.kl.configuration import FIGURE_1, KlConfiguration, extended
from orchestrator.kl.estimators import vocabulary_kl, vocabulary_slope

DEFAULT = LabSetting(ToyPolicy(-0.33, -0.082), ToyPolicy(1.17, 0.037), num_tokens=32)
"""orch's parameters. With them every statement of the paper on its Fig. 1 is true."""

CAVEAT = (
    "The paper does not state the parameters of its Fig. 1; the defaults are ours. Which one "
    "has the highest bias or the lowest variance depends on them (orch explain --exact --sweep); "
    "that k1 in the reward is unbiased does not."
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
        "reverse_kl": estimates(LabSetting(setting.policy, setting.reference, setting.num_tokens))[
            "k1"
        ][0],
        "estimates": {k: {"mean": m, "variance": v} for k, (m, v) in values.items()},
        "truth": dict(zip(PARAMETERS, map(float, truth), strict=True)),
        "configurations": rows,
    }


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
FILE_WIDTH = 1500
"""Width of Fig. 1 in a file, in pixels."""


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


class Curves(NamedTuple):
    """Curves over one axis."""

    title: str
    x: str
    """The title of the horizontal axis."""
    points: Sequence[float]
    lines: Mapping[str, Sequence[float]]
    """Name -> value at each point. The first is dashed: what the others are compared with."""
    most: tuple[float, float] | None = None
    """The ends of the vertical axis; None: those of the values."""


def draw_terms(estimators: Sequence[str], path: Path) -> None:
    """Draw `curves_of` estimators.

    Raise LaboratoryError as it does, for another file format, or if the file cannot be written.
    """
    draw_curves(curves_of(estimators), path)


def curves_of(estimators: Sequence[str]) -> list[Curves]:
    """Return penalty and gradient of estimators beside those of the reverse KL.

    For estimates of a sampled token they are over its log-ratio. For estimators over the vocabulary
    one token's logit is moved away from the reference policy's. Raise LaboratoryError for a mixture
    of both.
    """
    kinds = {entry(name).is_of_vocabulary for name in estimators}
    if len(kinds) > 1:
        raise LaboratoryError(
            f"{', '.join(estimators)}: draw estimates of a sampled token, or estimators over the "
            "vocabulary, and not both in one picture"
        )
    return _of_vocabulary(estimators) if kinds == {True} else _of_a_token(estimators)


def draw_curves(curves: Sequence[Curves], path: Path) -> None:
    """Draw curves side by side. Raise LaboratoryError as `draw_terms` does."""
    _check_format(path)
    _write([_curve_view(each) for each in curves], path, columns=2, width=820)


TRUE = "reverse KL: k1, and its gradient x"
TRUE_OF_STATE = "reverse KL of the state"
_PENALTY, _FACTOR = "penalty (nats)", "factor of grad log q in the loss"
_MOVED = 4
"""The token whose logit is moved: the likeliest that the reference policy's top four leave out."""


def _of_a_token(estimators: Sequence[str]) -> list[Curves]:
    x = np.linspace(-2.5, 2.5, 201)
    penalties: dict[str, Sequence[float]] = {TRUE: x.tolist()}
    factors = dict(penalties)
    for name in estimators:
        form = entry(name)
        attached = form.value(x) if form.form == "ratio_attached" else 0.0
        penalties[name] = form.value(x).tolist()
        factors[name] = (form.slope(x) + attached).tolist()
    axis = "log q/p of the sampled token"
    return [
        Curves(title, axis, x.tolist(), lines, (-4, 6))
        for title, lines in ((_PENALTY, penalties), (_FACTOR, factors))
    ]


def _of_vocabulary(estimators: Sequence[str]) -> list[Curves]:
    """Return penalty and its derivative as one token's logit moves, at the laboratory's state."""
    x = np.linspace(-4.0, 4.0, 401)
    reference = wide_policy(1.0, 0.0).logp(1)[:, 0]
    moved = np.argsort(-reference)[_MOVED]
    logits = np.tile(reference, (len(x), 1))
    logits[:, moved] += x
    policy = logits - np.logaddexp.reduce(logits, -1, keepdims=True)
    chance = np.exp(policy)
    penalties: dict[str, Sequence[float]] = {}
    slopes: dict[str, Sequence[float]] = {}
    for line, name in ((TRUE_OF_STATE, "full"), *((each, each) for each in estimators)):
        penalties[line] = vocabulary_kl(name, policy, np.tile(reference, (len(x), 1))).tolist()
        weight = chance * vocabulary_slope(name, policy, np.tile(reference, (len(x), 1)))
        # By the chain rule through the softmax: d log p_i / d logit_j = (i == j) - p_j.
        slopes[line] = (weight[:, moved] - chance[:, moved] * weight.sum(-1)).tolist()
    axis = "how far the logit of the fifth token of eight is moved"
    return [
        Curves(title, axis, x.tolist(), lines)
        for title, lines in ((_PENALTY, penalties), ("its gradient in that logit", slopes))
    ]


_COLOURS = ("$text", "$c2", "$c0", "$c5", "$c3", "$c1")
_DASHES = ([5, 4], [1, 0], [8, 3], [2, 2], [6, 2, 2, 2], [12, 3])


def _curve_view(curves: Curves) -> ChartView:
    names = list(curves.lines)
    looks: dict[str, Spec] = {
        "color": {"domain": names, "range": list(_COLOURS[: len(names)])},
        "strokeDash": {"domain": names, "range": list(_DASHES[: len(names)])},
    }
    rows: Rows = [
        {"name": name, "x": float(at), "value": float(y)}
        for name, values in curves.lines.items()
        for at, y in zip(curves.points, values, strict=True)
    ]
    bounds: dict[str, Any] = {} if curves.most is None else {"domain": list(curves.most)}
    spec: Spec = {
        "height": 250,
        "mark": {"type": "line", "clip": True, "strokeWidth": 2},
        "encoding": {
            "x": {**quantity("x", curves.x), "axis": {"tickCount": 5}},
            "y": quantity("value", None, **bounds),
            **series("name", looks, "color", "strokeDash"),
        },
    }
    return {"title": curves.title, "spec": spec, "least": 260, "rows": rows}


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
