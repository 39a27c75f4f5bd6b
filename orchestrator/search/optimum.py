"""Where the optimum of a one-dimensional search lies, by a smooth curve through all its trials.

The best observed value is the best partly by luck: the noisier, the more. A curve pools the noise.
It is a Gaussian process over the field (its logarithm, where it is searched so): constant mean and
Matern covariance of smoothness 5/2, noise of equal size in every seed. Mean and size of the noise
are integrated over in closed form (flat prior; what seeds of the same trial show of the noise
counts), length and height of the covariance over a grid with flat priors in their logarithms
(Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, sections 2.2, 2.7, 4.2 and
5.2). A smoother covariance is too sure of a hill with one steep side.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.analysis.stats import ALPHA
from orchestrator.search.block import Dimension

if TYPE_CHECKING:
    from orchestrator.search.results import SearchOutcome

FEWEST = 5
"""Distinct values that have to be measured before a curve is fitted."""
LENGTHS = tuple(0.06 * 1.45**i for i in range(11))
"""Of the covariance, in units of the whole range: 0.06 to 2.5."""
HEIGHTS = tuple(0.3 * 4.0**i for i in range(12))
"""Its variance over that of one seed's noise: 0.3 to 1.3e6."""
POINTS = 121
"""Of the range, at which the curve is looked at."""
DRAWS = 2000


class Recommended(NamedTuple):
    """Where the fitted curve is best."""

    field: str
    value: float
    low: float
    high: float
    """Between these the optimum lies with probability 0.95, by the curve."""
    expected: float
    """The objective there, by the curve."""


class _Curve(NamedTuple):
    """One length and height: the curve at POINTS, given the noise."""

    log_weight: float
    mean: Any
    spread: Callable[[], Any]
    """Its covariance, over the noise's variance; most are never asked for."""
    scale: float
    """Sum of squares of which, over chi-squared, the noise's variance is."""


def recommended(one: "SearchOutcome") -> Recommended | None:
    """The fitted optimum; None where there is more than one field or objective, the field is no
    range, or too few values were measured. Values lie among those tried, not beyond them."""
    space, measured = one.search.space, one.measured
    if len(space) > 1 or len(one.search.objectives) > 1 or not space[0].is_range:
        return None
    (field,) = space
    if len({trial.params[field.field] for trial in measured}) < FEWEST:
        return None
    sign = one.search.objectives[0].sign
    seeds = [[sign * values[0] for values in trial.seeds.values()] for trial in measured]
    places = [_unit(field, trial.params[field.field]) for trial in measured]
    at, low, high, expected = optimum(places, seeds)
    told = [field.value(_value(field, place)) for place in (at, low, high)]
    return Recommended(field.field, told[0], told[1], told[2], sign * expected)


def optimum(
    places: Sequence[float], values: Sequence[Sequence[float]]
) -> tuple[float, float, float, float]:
    """Where in [0, 1] the curve is highest, between which places its top lies, and its height.

    places: of each trial; values: of its seeds.
    """
    import numpy  # noqa: F401, ICN001  its threads can be limited once it is loaded
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):  # many small matrices: several threads spend their time waiting
        return _optimum(places, values)


def _optimum(
    places: Sequence[float], values: Sequence[Sequence[float]]
) -> tuple[float, float, float, float]:
    import numpy as np

    counts = np.array([len(own) for own in values], float)
    means = np.array([math.fsum(own) / len(own) for own in values])
    within = math.fsum((v - m) ** 2 for own, m in zip(values, means, strict=True) for v in own)
    freedom = float(counts.sum()) - 1
    grid = np.linspace(min(places), max(places), POINTS)
    curves = [
        _curve(np.array(places), means, counts, within, freedom, grid, length, height)
        for length in LENGTHS
        for height in HEIGHTS
    ]
    logs = np.array([curve.log_weight for curve in curves])
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    mean = sum(w * curve.mean for w, curve in zip(weights, curves, strict=True))
    random = np.random.default_rng(0)
    tops: list[Any] = []
    for count, curve in zip(random.multinomial(DRAWS, weights), curves, strict=True):
        if count:
            noise = np.sqrt(curve.scale / random.chisquare(freedom, count))
            factor = _root(curve.spread())
            paths = factor @ random.standard_normal((factor.shape[1], count))
            tops.append(np.argmax(curve.mean[:, None] + noise * paths, axis=0))
    low, high = np.quantile(np.concatenate(tops), [ALPHA / 2, 1 - ALPHA / 2], method="nearest")
    top, step = int(np.argmax(mean)), (grid[1] - grid[0]) / 2  # tops lie between points too
    ends = max(grid[0], grid[low] - step), min(grid[-1], grid[high] + step)
    return float(grid[top]), float(ends[0]), float(ends[1]), float(mean[top])


def _curve(
    places: Any,
    means: Any,
    counts: Any,
    within: float,
    freedom: float,
    grid: Any,
    length: float,
    height: float,
) -> _Curve:
    import numpy as np

    def covariance(a: Any, b: Any) -> Any:
        far = math.sqrt(5) * np.abs(a[:, None] - b[None, :]) / length
        return height * (1 + far + far**2 / 3) * np.exp(-far)

    root = np.linalg.cholesky(covariance(places, places) + np.diag(1 / counts))
    ones = np.linalg.solve(root, np.ones(len(places)))
    data = np.linalg.solve(root, means)
    cross = np.linalg.solve(root, covariance(places, grid))
    precision = ones @ ones
    level = ones @ data / precision
    rest = data - level * ones
    scale = within + rest @ rest
    log_weight = (
        -np.log(np.diag(root)).sum()
        - 0.5 * math.log(precision)
        - 0.5 * freedom * math.log(max(scale, 1e-300))
    )
    beside = 1 - cross.T @ ones

    def spread() -> Any:
        return covariance(grid, grid) - cross.T @ cross + np.outer(beside, beside) / precision

    return _Curve(float(log_weight), level + cross.T @ rest, spread, float(scale))


def _root(spread: Any) -> Any:
    """A matrix whose product with its transpose is the covariance, which is of low rank."""
    import numpy as np

    sizes, axes = np.linalg.eigh(spread)
    kept = sizes > 1e-9 * sizes[-1]
    return axes[:, kept] * np.sqrt(sizes[kept])


def _unit(field: Dimension, value: Any) -> float:
    if field.log:
        return math.log(value / field.low) / math.log(field.high / field.low)
    return float((value - field.low) / (field.high - field.low))


def _value(field: Dimension, place: float) -> float:
    if field.log:
        return float(field.low * (field.high / field.low) ** place)
    return field.low + place * (field.high - field.low)


def plain(one: Recommended | None) -> Mapping[str, Any] | None:
    """As JSON."""
    return None if one is None else one._asdict()
