"""The optimum of a one-dimensional search, from a smooth curve through all its trials.

The best observed value is the best partly by luck, and the more so the larger the noise. A curve
averages the noise of all trials. It is a Gaussian process over the field, or over the field's
logarithm if the range is logarithmic. Its mean is constant, its covariance is a Matern function of
smoothness 5/2, and its noise has one size for every seed. Two parameters are integrated out in
closed form, with flat priors: the mean, and the size of the noise, which the spread between seeds
of one trial also measures. The length and the height of the covariance are integrated over a grid,
with flat priors in their logarithms (Rasmussen and Williams, Gaussian Processes for Machine
Learning, 2006, sections 2.2, 2.7, 4.2 and 5.2). A smoother covariance would give too short an
interval for a hill with one steep side.

docs/decisions/031 gives the reason why this is not the process of scikit-learn or Optuna.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from orchestrator.analysis.stats import ALPHA
from orchestrator.search.block import Dimension

MIN_VALUES = 5
"""Number of distinct measured values below which no curve is fitted."""
LENGTHS = tuple(0.06 * 1.45**i for i in range(11))
"""Lengths of the covariance, as shares of the whole range: 0.06 to 2.5."""
HEIGHTS = tuple(0.3 * 4.0**i for i in range(12))
"""Variance of the covariance, divided by the variance of one seed's noise: 0.3 to 1.3e6."""
POINTS = 121
"""Positions in the range at which the curve is computed."""
DRAWS = 2000
"""Curves drawn from the posterior, for the interval of the optimum."""


class Recommended(NamedTuple):
    """The point at which the fitted curve is best."""

    field: str
    value: float
    low: float
    high: float
    """By the curve, the optimum lies between `low` and `high` with probability 0.95."""
    expected: float
    """The value of the objective at the optimum, by the curve."""


class _Curve(NamedTuple):
    """The curve at POINTS for one length and one height, given the noise."""

    log_weight: float
    mean: Any
    spread: Callable[[], Any]
    """Return the posterior covariance, divided by the noise's variance. It is computed only when
    needed."""
    scale: float
    """The noise's variance is this sum of squares over a chi-squared variable."""


def recommend(
    dimension: Dimension, values: Sequence[Any], seeds: Sequence[Sequence[float]], sign: int
) -> Recommended | None:
    """Return the fitted optimum over one range; None if too few values were measured.

    values: the field's value in each trial. seeds: the objective of each seed of each trial. sign:
    1 if more is better, else -1. The optimum lies between the lowest and the highest tried value.
    """
    if len(set(values)) < MIN_VALUES:
        return None
    positions = [_to_unit(dimension, value) for value in values]
    best, low, high, height = optimum(positions, [[sign * v for v in own] for own in seeds])
    best, low, high = (dimension.value(_from_unit(dimension, x)) for x in (best, low, high))
    return Recommended(dimension.field, best, low, high, sign * height)


def optimum(
    positions: Sequence[float], values: Sequence[Sequence[float]]
) -> tuple[float, float, float, float]:
    """Return the highest point of the curve in [0, 1], the two ends of its interval, and its
    height.

    The interval contains the highest point with probability 0.95. positions: in [0, 1], one per
    trial. values: the objective of each seed of each trial.
    """
    import numpy  # noqa: F401, ICN001  its threads can be limited once it is loaded
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):  # many small matrices: several threads spend their time waiting
        return _optimum(positions, values)


def _optimum(
    positions: Sequence[float], values: Sequence[Sequence[float]]
) -> tuple[float, float, float, float]:
    import numpy as np

    counts = np.array([len(own) for own in values], float)
    means = np.array([math.fsum(own) / len(own) for own in values])
    # The seeds of one trial differ by noise alone, so their spread measures it without a curve.
    within = math.fsum((v - m) ** 2 for own, m in zip(values, means, strict=True) for v in own)
    freedom = float(counts.sum()) - 1
    grid = np.linspace(min(positions), max(positions), POINTS)
    curves = [
        _curve(np.array(positions), means, counts, within, freedom, grid, length, height)
        for length in LENGTHS
        for height in HEIGHTS
    ]
    logs = np.array([curve.log_weight for curve in curves])
    # A log weight can be far below -700, where exp() is 0; the largest becomes 1 instead.
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    mean = sum(w * curve.mean for w, curve in zip(weights, curves, strict=True))
    # A fixed seed: the recommended value is part of the identity of the cells that confirm it.
    random = np.random.default_rng(0)
    tops: list[Any] = []
    # Each pair of length and height gives a share of the curves: its posterior weight.
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
    positions: Any,
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
        distance = math.sqrt(5) * np.abs(a[:, None] - b[None, :]) / length
        return height * (1 + distance + distance**2 / 3) * np.exp(-distance)

    # The mean of n seeds has 1/n of the noise's variance. Everything is in units of that variance.
    root = np.linalg.cholesky(covariance(positions, positions) + np.diag(1 / counts))
    ones = np.linalg.solve(root, np.ones(len(positions)))
    data = np.linalg.solve(root, means)
    cross = np.linalg.solve(root, covariance(positions, grid))
    precision = ones @ ones
    level = ones @ data / precision
    rest = data - level * ones
    scale = within + rest @ rest
    log_weight = (
        -np.log(np.diag(root)).sum()
        - 0.5 * math.log(precision)
        # Equal values at all positions leave no scale, and log(0) is an error.
        - 0.5 * freedom * math.log(max(scale, 1e-300))
    )
    mean_weight = 1 - cross.T @ ones

    def spread() -> Any:
        return (
            covariance(grid, grid)
            - cross.T @ cross
            + np.outer(mean_weight, mean_weight) / precision
        )

    return _Curve(float(log_weight), level + cross.T @ rest, spread, float(scale))


def _root(spread: Any) -> Any:
    """Return a matrix whose product with its transpose is this covariance, which has a low rank."""
    import numpy as np

    sizes, axes = np.linalg.eigh(spread)
    # Rounding makes eigenvalues that should be 0 slightly negative, and they have no root.
    kept = sizes > 1e-9 * sizes[-1]
    return axes[:, kept] * np.sqrt(sizes[kept])


def _to_unit(dimension: Dimension, value: Any) -> float:
    if dimension.log:
        return math.log(value / dimension.low) / math.log(dimension.high / dimension.low)
    return float((value - dimension.low) / (dimension.high - dimension.low))


def _from_unit(dimension: Dimension, position: float) -> float:
    if dimension.log:
        return float(dimension.low * (dimension.high / dimension.low) ** position)
    return dimension.low + position * (dimension.high - dimension.low)
