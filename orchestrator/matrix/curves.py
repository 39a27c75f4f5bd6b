"""Which estimator a library's per-token KL is: its value, its gradient, its bounds, its weight."""

from collections.abc import Mapping
from typing import Any, get_args

import numpy as np

from orchestrator.matrix.batches import CURVE, NEAR, as_array
from orchestrator.matrix.curve import Curve
from orchestrator.semantics.estimators import clamped_value, shape, slope
from orchestrator.semantics.model import Table
from orchestrator.settings import Estimator

WEIGHTS: Mapping[str, float | None] = {"on": None, "off": 0.7, "far": 5.0}
"""log pi / pi_rollout of the tokens of each curve; in `far` a bounded weight is at its bound."""
_AMONG = np.isin(CURVE, NEAR)
CLOSE = 1e-6
"""Agreement of two numbers of the size of 1: libraries round some steps to float32."""

FORMS: tuple[str, ...] = (
    *(e for e in get_args(Estimator) if e != "none" and not e.endswith("+")),
    "sg_rho_k1", "sg_rho_k3",
)  # fmt: skip


def classify(answers: Mapping[str, Mapping[str, Any]]) -> Curve:
    """From the answers to `kl` on curve(WEIGHTS[name])."""
    value = {name: as_array(each, "value")[0] for name, each in answers.items()}
    gradient = {name: as_array(each, "slope")[0] for name, each in answers.items()}
    bound_of, (below, above) = value["on"], flat(gradient["on"])
    value["on"], gradient["on"] = value["on"][_AMONG], gradient["on"][_AMONG]
    whose, off = _nearest(value, _values)
    whose_gradient, off_gradient = _nearest(gradient, _gradients)
    weight = _bound_of_weight(gradient) if "rho" in whose_gradient else None
    return Curve(
        value=whose, gradient=whose_gradient, straight_through=_through(value, gradient, whose),
        value_bound=_bound(bound_of, whose), flat_below=below, flat_above=above,
        weight_bound=None if weight is None else float(f"{weight:.4g}"),
        deviation=float(f"{max(off, off_gradient):.2g}"),
    )  # fmt: skip


def _values(form: str, x: Table, weight: float) -> Table:
    plain, weighting, _ = shape(form)  # type: ignore[arg-type]
    found: Table = clamped_value(plain, x) * (1.0 if weighting == "none" else weight)
    return found


def _gradients(form: str, x: Table, weight: float) -> Table:
    plain, weighting, _ = shape(form)  # type: ignore[arg-type]
    found = slope(form, x)  # type: ignore[arg-type]
    if weighting == "attached":
        found = found + clamped_value(plain, x)
    result: Table = found * (1.0 if weighting == "none" else weight)
    return result


def _nearest(curves: Mapping[str, Table], closed: Any) -> tuple[str, float]:
    """The form that fits where weights are 1 and where they are moderate, and how well."""
    best = ("?", float("inf"))
    for form in FORMS:
        off = max(
            float(np.abs(curves[at] - closed(form, NEAR, float(np.exp(WEIGHTS[at] or 0.0)))).max())
            for at in ("on", "off")
        )
        if off < best[1] * 0.5:
            best = (form, off)
    return best if best[1] <= CLOSE * 10 else ("?", best[1])


def _through(value: Mapping[str, Table], gradient: Mapping[str, Table], whose: str) -> bool:
    """Whether the gradient differs from the value's own, by central differences. The weight is the
    same along a curve; where it is part of the value, its own gradient is the value again."""
    step = NEAR[1] - NEAR[0]
    own = (value["off"][2:] - value["off"][:-2]) / (2 * step)
    given = gradient["off"][1:-1]
    inner = np.abs(NEAR[1:-1]) > 2 * step
    plain = float(np.abs(own - given)[inner].max())
    attached = float(np.abs(own + value["off"][1:-1] - given)[inner].max())
    return plain > 1e-3 and (attached > 1e-3 or "rho" not in whose)


def _bound_of_weight(gradient: Mapping[str, Table]) -> float | None:
    """The weight of the gradient where pi / pi_rollout is large, if it is not that ratio."""
    on, largest = gradient["on"], float(np.exp(WEIGHTS["far"] or 0.0))
    found = float(np.nanmedian(gradient["far"] / np.where(on == 0, np.nan, on)))
    return None if found > 0.9 * largest else found


def _bound(value: Table, whose: str) -> float | None:
    if whose == "?":
        return None
    free = _values(whose, CURVE, 1.0)
    held = np.abs(value) < np.abs(free) * (1 - 1e-6) - 1e-6
    return float(f"{np.abs(value[held]).max():.4g}") if held.any() else None


def flat(gradient: Table) -> tuple[float | None, float | None]:
    """Where the gradient stops, going away from 0 in both directions."""
    zero = np.abs(gradient) <= 1e-12
    zero |= ~np.isfinite(gradient)
    below = np.flatnonzero(~zero & (CURVE < -0.5))
    above = np.flatnonzero(~zero & (CURVE > 0.5))
    low = None if zero[0] is np.False_ or not len(below) else float(CURVE[below[0]])
    high = None if zero[-1] is np.False_ or not len(above) else float(CURVE[above[-1]])
    return (low if zero[0] else None), (high if zero[-1] else None)
