"""How steadily each configuration trained: drop from its peak, spread, steps kept."""

from typing import Any

from orchestrator.compare import Comparison, Configuration
from orchestrator.compare.phrases import number, told
from orchestrator.compare.stability import Spread
from orchestrator.compare.words import metric as name_of
from orchestrator.report.data import names_of, rounded
from orchestrator.report.model import Figure, Section, Table
from orchestrator.report.rows import WHO, cells, who

TEXT = (
    "Drop: the best value of the curve less its last; 0 for a run that ends at its best. Noise "
    "alone makes it positive, the more so the oftener a run is evaluated: compare it between "
    "configurations, not with 0. Spread: the standard deviation between seeds of the final value, "
    "with its chi-square interval. Steps kept: train steps before a collapse, or all of them; the "
    "mean is the area under the share of runs that still train."
)
MEASURES = {
    "drop": "drop from the peak",
    "spread": "standard deviation between seeds",
    "steps": "train steps kept before a collapse",
}


def steadiness(comparison: Comparison) -> Section | None:
    """A figure and a table of stability; nothing before a run has ended."""
    found = [(c, s) for c, s in names_of(comparison.configurations) if c.stability.steps_kept]
    if not found:
        return None
    curves = {name_of(c.stability.metric) for c, _ in found if c.stability.metric}
    figure = Figure(
        "stability", "stability", "Stability",
        f"Of the curve of {' or '.join(sorted(curves)) or 'no metric'}. Lines are 95 % intervals; "
        "those of a spread from few seeds are long, and are meant to be.",
        "Dots with intervals: drop from the peak, spread between seeds and steps kept of each "
        "configuration; the table below holds the numbers.",
    )  # fmt: skip
    rows = tuple((*who(c, s), *_row(c), cells(c)) for c, s in found)
    columns = (*WHO, "drop from the peak", "spread between seeds", "steps kept",
               "collapsed at step", "cells")  # fmt: skip
    table = Table("Stability of every configuration, with 95 % intervals", columns, rows,
                  searchable=True)  # fmt: skip
    return Section("stability", "Stability", (TEXT,), figures=(figure,), tables=(table,))


def _row(c: Configuration) -> tuple[str, ...]:
    s = c.stability
    kept = f"{number(s.steps_kept.mean)} of {s.num_train_steps}" if s.steps_kept else ""
    return (
        told(s.drop) if s.drop else "",
        _spread(s.spread),
        kept,
        ", ".join(map(str, s.collapsed_at)),
    )


def _spread(found: Spread | None) -> str:
    if found is None:
        return "one seed: none"
    if found.low is None or found.high is None:
        return number(found.sd)
    return f"{number(found.sd)} [{number(found.low)}, {number(found.high)}]"


def data(comparison: Comparison) -> dict[str, Any]:
    """Measure -> title and, by configuration, [value, low, high] or null."""
    return {
        name: {"title": title, "values": [_values(c, name) for c in comparison.configurations]}
        for name, title in MEASURES.items()
    }


def _values(c: Configuration, measure: str) -> list[Any] | None:
    s = c.stability
    if measure == "spread":
        one = s.spread
        return None if one is None else [rounded(v) for v in (one.sd, one.low, one.high)]
    estimate = s.drop if measure == "drop" else s.steps_kept
    if estimate is None:
        return None
    return [rounded(v) for v in (estimate.mean, estimate.low, estimate.high)]
