"""The recommended β of a search: where a smooth curve through all its trials is best.

The best observed value is best partly by luck, and the more so the larger the noise. A curve
averages the noise of all trials. It is scikit-learn's Gaussian process over ln β, with a Matern
covariance of smoothness 5/2 and one noise for every seed, fitted by maximum likelihood.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from orchestrator.analysis.stats import ALPHA
from orchestrator.search.block import TuneBlock

MIN_VALUES = 5
"""Number of distinct measured values below which no curve is fitted."""
POINTS = 121
"""Positions in the range at which the curve is computed."""
DRAWS = 2000
"""Curves drawn from the posterior, for the interval of the optimum."""


class Recommended(NamedTuple):
    """The β at which the fitted curve is best."""

    value: float
    low: float
    high: float
    """By the curve, the optimum lies between `low` and `high` with probability 0.95."""
    expected: float
    """The value of the objective at the optimum, by the curve."""


def recommend(
    block: TuneBlock, measured: Sequence[tuple[float, Mapping[int, float]]]
) -> Recommended | None:
    """Return the fitted optimum within the tried values; None if too few values were measured.

    measured: β of each trial, and the objective of each of its seeds.
    """
    import numpy as np

    betas = np.array([beta for beta, seeds in measured for _ in seeds])
    if len(set(betas)) < MIN_VALUES:
        return None
    span = np.log(block.beta[1] / block.beta[0])
    positions = np.log(betas / block.beta[0]) / span
    values = block.sign * np.array([v for _, seeds in measured for v in seeds.values()])
    grid = np.linspace(positions.min(), positions.max(), POINTS)
    curve = _fitted(positions, values)
    mean = curve.predict(grid[:, None])
    # A fixed seed: the recommended value is part of the identity of the cells that confirm it.
    tops = curve.sample_y(grid[:, None], DRAWS, random_state=0).argmax(axis=0)
    low, high = np.quantile(tops, [ALPHA / 2, 1 - ALPHA / 2], method="nearest")
    top, step = int(mean.argmax()), (grid[1] - grid[0]) / 2  # tops lie between points too
    nodes = (grid[top], max(grid[0], grid[low] - step), min(grid[-1], grid[high] + step))
    value, low, high = (block.value(float(block.beta[0] * np.exp(at * span))) for at in nodes)
    return Recommended(value, low, high, block.sign * float(mean[top]))


def _fitted(positions: Any, values: Any) -> Any:
    """Return the process without its noise: its draws are curves, not observations."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    # Positions are shares of the range; values are scaled to variance 1.
    hill = ConstantKernel(1.0, (1e-2, 1e2)) * Matern(0.3, (0.06, 2.5), nu=2.5)
    noisy = GaussianProcessRegressor(
        hill + WhiteKernel(0.1, (1e-6, 2.0)),
        normalize_y=True,
        n_restarts_optimizer=4,
        random_state=0,
    )
    with warnings.catch_warnings():
        # a parameter at its bound, such as the noise of values without any, is an answer here
        warnings.simplefilter("ignore", ConvergenceWarning)
        noisy.fit(positions[:, None], values)
    kernel = noisy.kernel_
    curve = GaussianProcessRegressor(
        kernel.k1, alpha=kernel.k2.noise_level, optimizer=None, normalize_y=True
    )
    return curve.fit(positions[:, None], values)
