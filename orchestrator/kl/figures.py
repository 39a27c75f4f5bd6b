"""The paper's Fig. 1, as plain data for the report and `orch lab`, and drawn with matplotlib."""

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

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
"""orch's parameters: with them all that the paper says of its Fig. 1 holds."""

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

    A bias is |expected gradient - gradient of the sequence reverse KL|; a variance is that of a
    trial, the mean over `sequences` sequences. Per parameter, a and b of the policy. No
    configurations: all of them.
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
COLOURS = {"reward": "#0072b2", "loss": "#d55e00", "reward_and_loss": "#009e73"}
PANELS = (("bias", "a"), ("bias", "b"), ("variance", "a"), ("variance", "b"))


def draw(data: dict[str, Any], path: Path) -> None:
    """Draw Fig. 1 as PNG, PDF or SVG: the paper's four configurations above the extended set.

    Log scales. Bars are Monte-Carlo, ticks exact; a bias that is exactly zero has no tick.
    Raise LaboratoryError on a file that is not PNG, PDF or SVG, or cannot be written.
    """
    _check_format(path)
    from matplotlib.figure import Figure

    four = [row for row in data["configurations"] if row["in_paper"]]
    figure = Figure(figsize=(14, 11), layout="constrained")
    halves: Any = figure.subfigures(2, 1, height_ratios=(1, 2.6))
    _panels(halves[0], four, "The paper's four (Fig. 1)")
    _panels(halves[1], data["configurations"], "All configurations")
    figure.suptitle(_title(data), fontsize=11)
    figure.supxlabel(textwrap.fill(data["caveat"], 150), fontsize=9)
    _save(figure, path)


def draw_term(estimator: str, path: Path) -> None:
    """Draw penalty and gradient of an estimator against the log-ratio, beside the reverse KL's.

    Raise LaboratoryError for an estimator over the vocabulary, and as `draw` does.
    """
    form = entry(estimator)
    if form.is_of_vocabulary:
        raise LaboratoryError(
            f"{estimator} is averaged over the vocabulary: it is no curve over a sampled token's "
            "log-ratio; draw k1 or k2, whose average it is"
        )
    _check_format(path)
    from matplotlib.figure import Figure

    x = np.linspace(-2.5, 2.5, 401)
    gradient = form.slope(x) + (form.value(x) if form.form == "ratio_attached" else 0.0)
    figure = Figure(figsize=(9, 4), layout="constrained")
    panels: Any = figure.subplots(1, 2)
    for panel, title, mine, true in (
        (panels[0], "penalty (nats)", form.value(x), x),
        (panels[1], "factor of ∇ log q in the loss", gradient, x),
    ):
        panel.plot(x, true, "k--", label="reverse KL: k1, and its gradient x")
        panel.plot(x, mine, color=COLOURS["loss"], label=estimator)
        panel.set(title=title, xlabel="log q/p of the sampled token", ylim=(-4, 6))
        panel.grid(alpha=0.3)
    panels[0].legend(fontsize=8)
    _save(figure, path)


def _check_format(path: Path) -> None:
    if path.suffix.lower() not in FORMATS:
        raise LaboratoryError(
            f"a figure is written as {', '.join(FORMATS)}; got '{path.name}': change its ending"
        )


def _save(figure: Any, path: Path) -> None:
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise LaboratoryError(f"cannot write the figure to '{path}': {error.strerror}") from error


def _panels(figure: Any, rows: Sequence[dict[str, Any]], title: str) -> None:
    figure.suptitle(title, fontsize=10)
    axes = figure.subplots(1, len(PANELS), sharey=True)
    places = range(len(rows))
    for panel, (statistic, parameter) in zip(axes, PANELS, strict=True):
        sampled = [row[parameter][f"sampled_{statistic}"] or math.nan for row in rows]
        exact = [row[parameter][statistic] or math.nan for row in rows]
        panel.barh(places, sampled, color=[COLOURS[row["placement"]] for row in rows], alpha=0.75)
        panel.plot(exact, places, "k|", markersize=10, label="exact")
        panel.set_xscale("log")
        panel.set_title(f"{statistic} of d/d{parameter}", fontsize=9)
        panel.set_yticks(places, [row["label"] for row in rows], fontsize=8)
        panel.tick_params(axis="x", labelsize=8)
        panel.grid(axis="x", alpha=0.3)
    axes[0].invert_yaxis()
    axes[-1].legend(loc="lower right", fontsize=8)


def _title(data: dict[str, Any]) -> str:
    setting = data["setting"]
    policies = "   ".join(
        f"{name}: a = {values['a']:g}, b = {values['b']:g}"
        for name, values in setting.items()
        if isinstance(values, dict)
    )
    return (
        f"Gradient of the KL term: {data['trials']} trials x {data['sequences']} sequences of "
        f"T = {setting['num_tokens']}\n{policies}   KL = {data['reverse_kl']:.3g} nats"
    )
