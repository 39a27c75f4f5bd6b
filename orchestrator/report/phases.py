"""The section on phase maps: fields of stable training, and the bound of linear stability."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from orchestrator.analysis.compare import Comparison
from orchestrator.analysis.linear_stability import ASSUMES, FORMULA
from orchestrator.analysis.phases import RULE, STATES, PhaseField, PhaseMap, phase_maps
from orchestrator.report.figures import rounded
from orchestrator.report.model import Figure, ReportTable, Section

AXES = {
    "async": "staleness (updates)",
    "max_staleness_steps": "staleness (updates)",
    "optimizer.learning_rate": "learning rate",
}
COLUMNS = ("study", "setting", "KL", "β", "beside it", "seeds", *STATES, "shown by", "β bound")


def axis_title(axis: str) -> str:
    """Return the title of an axis of a map."""
    return AXES.get(axis, axis)


def phase_section(comparison: Comparison) -> Section | None:
    """Return a section with the phase maps and their numbers, or None without a map."""
    maps = phase_maps(comparison.configurations)
    if not maps:
        return None
    figure = Figure(
        "phases",
        "phases",
        "Phase maps",
        "In each field the seeds that were stable / unstable / collapsed; the colour is their "
        "mean, from all stable to all collapsed. A thick line: the β above which linear stability "
        "predicts growth; at the lower edge where it lies below the map, and none where it lies "
        "above the map or where nothing is predicted.",
        "Heat maps of stable, unstable and collapsed seeds over β and another setting, one for "
        "each KL term; the table below holds the numbers.",
    )
    rows = tuple(row for one in maps for row in _rows(one))
    table = ReportTable(
        "Shares of the seeds of each field, with Wilson's 95 % intervals",
        COLUMNS,
        rows,
        searchable=True,
    )
    boundary = any(b is not None for one in maps for b in one.boundary)
    text = (RULE, f"The bound: {FORMULA} {ASSUMES}") if boundary else (RULE,)
    return Section("phases", "Phase maps", text, figures=(figure,), tables=(table,))


def phase_panels(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the panels of the figure: labels, colour and text of each field, and the bound."""
    maps = phase_maps(comparison.configurations)
    return [
        _panel(one, several=len({m.setting for m in maps if _same(m, one)}) > 1) for one in maps
    ]


def _same(one: PhaseMap, other: PhaseMap) -> bool:
    return (one.study, one.kl, one.axis) == (other.study, other.kl, other.axis)


def _panel(one: PhaseMap, *, several: bool) -> dict[str, Any]:
    fields = [[one.fields.get((beta, x)) for x in one.xs] for beta in one.betas]
    return {
        "title": f"{one.kl} · {one.study}" + (f" · {one.setting}" if several else ""),
        "xtitle": axis_title(one.axis),
        "x": [f"{float(x):g}" for x in one.xs],
        "y": ["no KL" if beta is None else f"{beta:g}" for beta in one.betas],
        "z": [[_severity(field) for field in row] for row in fields],
        "text": [[_counts(field) for field in row] for row in fields],
        "hover": [[_sentence(field) for field in row] for row in fields],
        "boundary": [_place(beta, one.betas) for beta in one.boundary],
    }


def _severity(field: PhaseField | None) -> float | None:
    """Return the mean severity of a field's seeds: stable 0, unstable 0.5, collapsed 1.

    Return None if no seed has ended.
    """
    if field is None or not field.ended:
        return None
    return rounded((field.counts["unstable"] + 2 * field.counts["collapsed"]) / (2 * field.ended))


def _counts(field: PhaseField | None) -> str:
    return "" if field is None else " / ".join(str(field.counts[state]) for state in STATES)


def _sentence(field: PhaseField | None) -> str:
    if field is None:
        return ""
    shares = (f"{state} {_share(field, state)}" for state in STATES)
    return f"{field.ended} of {field.declared} seeds ended: {', '.join(shares)}"


def _share(field: PhaseField, state: Any) -> str:
    low, high = field.interval(state)
    return f"{field.counts[state]} of {field.ended} [{low:.0%}, {high:.0%}]"


def _place(bound: float | None, betas: Sequence[float | None]) -> float | None:
    """Return the position of a beta on the axis of a map's rows, interpolated in log beta.

    Return None if it is above the map, and the lower edge if it is below.
    """
    known = [(i, math.log(beta)) for i, beta in enumerate(betas) if beta is not None and beta > 0]
    if bound is None or not known or math.log(bound) > known[-1][1]:
        return None
    if math.log(bound) <= known[0][1]:
        return known[0][0] - 0.5
    (i, low), (_, high) = next((a, b) for a, b in pairwise(known) if math.log(bound) <= b[1])
    return rounded(i + (math.log(bound) - low) / (high - low))


def _rows(one: PhaseMap) -> Iterator[tuple[str, ...]]:
    for x, bound in zip(one.xs, one.boundary, strict=True):
        for beta in one.betas:
            field = one.fields.get((beta, x))
            if field is None or not field.ended:
                continue
            yield (
                one.study,
                one.setting,
                "none" if beta is None else one.kl,
                "" if beta is None else f"{beta:g}",
                f"{axis_title(one.axis)} {float(x):g}",
                f"{field.ended} of {field.declared}",
                *(_share(field, state) for state in STATES),
                ", ".join(f"{name} {n}" for name, n in field.shown_by.items()),
                "" if beta is None else "none" if bound is None else f"{bound:.3g}",
            )
