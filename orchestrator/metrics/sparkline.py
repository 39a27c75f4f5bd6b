"""Draw a curve in a few characters."""

import math
from collections.abc import Sequence

BARS = "▁▂▃▄▅▆▇█"
NAN = "×"


def sparkline(
    values: Sequence[float], width: int, low: float | None = None, high: float | None = None
) -> str:
    """Return at most `width` bars from the lowest value (or `low`) to the highest (or `high`).

    More values are averaged in equal groups. A value that is not finite shows as ×.
    """
    if not values or width < 1:
        return ""
    count = min(width, len(values))
    groups = [
        values[i * len(values) // count : (i + 1) * len(values) // count] for i in range(count)
    ]
    means = [math.fsum(group) / len(group) for group in groups]
    finite = [value for value in means if math.isfinite(value)]
    low = min(finite, default=0.0) if low is None else low
    high = max(finite, default=0.0) if high is None else high
    return "".join(_bar(value, low, high) for value in means)


def _bar(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return NAN
    if high <= low:
        return BARS[0]
    share = (value - low) / (high - low)
    return BARS[min(len(BARS) - 1, max(0, int(share * len(BARS))))]
