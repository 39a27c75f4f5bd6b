"""Numbers as text: estimates, shares, p-values, lists."""

import math
from collections.abc import Iterable

from orchestrator.analysis.estimates import Estimate, Rate


def told(found: Estimate | Rate, *, interval: bool = True, signed: bool = False) -> str:
    """`0.123 [0.100, 0.146]`, or `3 of 12 runs [0.05, 0.57]`."""
    if isinstance(found, Rate):
        text = f"{found.count} of {found.n} runs"
        return f"{text} [{found.low:.2f}, {found.high:.2f}]" if interval else text
    sign = "+" if signed else ""
    if found.half_width is not None and found.half_width >= 0.001 and abs(found.mean) < 0.001:
        text = f"{found.mean:{sign}.3f}".replace("-", "−")
    else:
        text = number(found.mean, sign)
    if not interval:
        return text
    if found.low is None or found.high is None:
        return f"{text} (one seed: no interval)"
    return f"{text} [{number(found.low, sign)}, {number(found.high, sign)}]"


def number(value: float, sign: str = "") -> str:
    """Three decimals; fewer digits for large numbers, more for small ones."""
    if not math.isfinite(value):
        return "not a number"
    if value == 0 or 0.001 <= abs(value) < 1000:
        return f"{value:{sign}.3f}".replace("-", "−")
    return f"{value:{sign}.3g}".replace("-", "−")


def p_value(p: float | None) -> str:
    """`p = 0.032`, `p < 0.001`."""
    if p is None:
        return "no p"
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}" if p < 0.995 else "p = 1"


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count != 1 else ''}"


def listed(values: Iterable[object]) -> str:
    """`0`, `0 and 1`, `0, 1 and 2`."""
    *first, last = [str(value) for value in values]
    return f"{', '.join(first)} and {last}" if first else last
