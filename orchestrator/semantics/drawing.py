"""Drawing the laboratory's data with matplotlib, as PNG, PDF or SVG."""

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.errors import LaboratoryError

FORMATS = (".png", ".pdf", ".svg")
COLOURS = {"reward": "#0072b2", "loss": "#d55e00", "reward_and_loss": "#009e73"}
PANELS = (("bias", "a"), ("bias", "b"), ("variance", "a"), ("variance", "b"))


def draw(data: dict[str, Any], path: Path) -> None:
    """Fig. 1 with the paper's four configurations above the extended set; log scales.

    Bars are Monte-Carlo, ticks exact; a bias that is exactly zero has no tick.
    Raises LaboratoryError on a file that is not PNG, PDF or SVG, or cannot be written.
    """
    if path.suffix.lower() not in FORMATS:
        raise LaboratoryError(
            f"a figure is written as {', '.join(FORMATS)}; got '{path.name}': change its ending"
        )
    from matplotlib.figure import Figure

    four = [row for row in data["configurations"] if row["in_paper"]]
    figure = Figure(figsize=(14, 11), layout="constrained")
    halves: Any = figure.subfigures(2, 1, height_ratios=(1, 2.6))
    _panels(halves[0], four, "The paper's four (Fig. 1)")
    _panels(halves[1], data["configurations"], "All configurations")
    figure.suptitle(_title(data), fontsize=11)
    figure.supxlabel(textwrap.fill(data["caveat"], 150), fontsize=9)
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
