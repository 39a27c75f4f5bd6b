"""The exact gradient of a KL configuration on the autoregressive model: its mean and variance.

Per sequence every configuration's gradient is W (F S + L): F the KL summed over tokens, S the
(weighted) score, L the gradient taken inside the sum, W a sequence ratio or 1.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from orchestrator.errors import LaboratoryError
from orchestrator.semantics.catalogue import PLAIN
from orchestrator.semantics.configuration import Configuration
from orchestrator.semantics.estimators import clamped_value, shape, slope
from orchestrator.semantics.model import Setting, Table, Tables, tables
from orchestrator.semantics.moments import Moments, moments
from orchestrator.settings import Estimator

PARAMETERS = ("a", "b")


class Sums(NamedTuple):
    """The tables of W (F S + L) for one configuration: f, l and s are [2 parameters, 2, T]."""

    f: Table
    s: Table
    l: Table  # noqa: E741  (f, s and l: the three tables of a configuration)
    weighted: bool
    """Whether W is the ratio of the sequence."""


class Exact(NamedTuple):
    """What the laboratory found, [configurations, 2 parameters], nats per unit of a and b."""

    mean: Table
    """The expected gradient."""
    variance: Table
    """Of one sequence's gradient; with centring, G times the variance of a group's mean."""
    magnitude: Table
    """Root mean square of one sequence's gradient: the scale on which a mean is zero."""


def exact(setting: Setting, configurations: Sequence[Configuration]) -> Exact:
    """Expected gradient and variance of every configuration.

    Raises LaboratoryError where the rollout policy is so far off that a variance overflows.
    """
    table = tables(setting)
    sums = [sums_of(configuration, table) for configuration in configurations]
    with np.errstate(over="ignore", invalid="ignore"):
        powers = [_moments(sums, table, power) for power in (0, 1, 2)]
        columns = [_statistics(c, *(p[i] for p in powers)) for i, c in enumerate(configurations)]
    result = Exact(*(np.array(part) for part in zip(*columns, strict=True)))
    if not all(np.isfinite(part).all() for part in result):
        worst = next(
            c.label for c, v in zip(configurations, result.variance, strict=True)
            if not np.isfinite(v).all()
        )  # fmt: skip
        raise LaboratoryError(
            f"the variance of {worst} is not finite: the rollout policy has too little support "
            "where the policy writes; use nearer parameters or fewer tokens"
        )
    return result


def estimates(setting: Setting) -> dict[Estimator, tuple[float, float]]:
    """Mean and variance over sequences of each plain KL estimate itself, in nats."""
    table = tables(setting)
    f = np.stack([clamped_value(k, table.x) for k in PLAIN], axis=-1)
    nothing = np.zeros_like(f)
    measure = np.repeat(np.exp(table.logp_rollout)[..., None], len(PLAIN), axis=-1)
    found = moments(measure, f, nothing, nothing).fs
    means, squares = found[1, 0], found[2, 0]
    return {
        k: (float(mean), float(square - mean**2))
        for k, mean, square in zip(PLAIN, means, squares, strict=True)
    }


def sums_of(configuration: Configuration, table: Tables) -> Sums:
    """The tables of a configuration, off-policy in general (w = 1 on-policy)."""
    plain, weighting, _ = shape(configuration.estimator)
    x, w, score, clamp = table.x, table.w, table.score, configuration.clamp
    weighted = configuration.ratio == "sequence"
    token_w = w if configuration.ratio == "token" else np.ones_like(w)
    zero = np.zeros_like(score)
    f, s, inner = zero, zero, zero
    if configuration.placement != "loss":
        if configuration.reward_kl_of == "rollout":
            kl = clamped_value(plain, table.logp_rollout - table.logp_ref, clamp)
        else:
            kl = clamped_value(plain, x, clamp) * (1.0 if weighting == "none" else token_w)
        f, s = kl + zero, token_w * score
    if configuration.placement != "reward":
        gradient = slope(configuration.estimator, x, clamp)
        if weighting == "attached" and weighted:
            f, s = clamped_value(plain, x, clamp) + zero, score
        elif weighting == "attached":
            gradient = gradient + clamped_value(plain, x, clamp)
        inner = gradient * score * (1.0 if weighting == "none" else token_w)
    return Sums(f, s, inner, weighted)


def _moments(sums: Sequence[Sums], table: Tables, power: int) -> list[Moments]:
    """Moments of each configuration's (F, S, L) under sampling times W^power.

    Unweighted configurations have one measure, so their rows are computed once, at power 0.
    """
    rows = [i for i, each in enumerate(sums) if each.weighted or power == 0]
    if not rows:
        return [_NONE] * len(sums)
    count = len(rows)
    probability = np.exp(table.logp_rollout) * table.w**power
    measure = np.repeat(probability[..., None], 2 * count, axis=-1)
    stacked = (_stack([sums[i][part] for i in rows]) for part in range(3))
    whole = moments(measure, *stacked)
    found: list[Moments] = [_NONE] * len(sums)
    for at, i in enumerate(rows):
        found[i] = Moments(*(part[..., 2 * at : 2 * at + 2] for part in whole))
    return found


_NONE = Moments(np.empty(0), np.empty(0), np.empty(0))


def _stack(parts: list[Any]) -> Table:
    """[rows] of [2 parameters, 2, T] -> [2, T, 2 rows], parameters innermost."""
    stacked = np.stack(parts)
    return np.ascontiguousarray(
        np.moveaxis(stacked, (2, 3), (0, 1)).reshape(*stacked.shape[2:], -1)
    )


def _statistics(
    configuration: Configuration, at_0: Moments, at_1: Moments, at_2: Moments
) -> tuple[Table, Table, Table]:
    """Mean, variance and root mean square of one configuration's gradient."""
    if configuration.ratio != "sequence":
        at_1 = at_2 = at_0
    mean = at_1.fs[1, 1] + at_1.fsl[0, 0]
    square = at_2.fs[2, 2] + 2 * at_2.fsl[1, 1] + at_2.ll
    n = configuration.group_size
    if configuration.centring == "none" or n is None:
        return mean, square - mean**2, np.sqrt(square)
    shrink = 1 - 1 / n if configuration.centring == "same_batch_mean" else 1.0
    covariance, variance, joint = _covariance(at_0, at_1, at_2, n)
    inner = at_0.fsl[0, 0]
    mean = shrink * covariance + inner
    spread = at_0.ll - inner**2
    return mean, n * shrink**2 * variance + spread + 2 * shrink * joint, np.sqrt(square)


def _covariance(at_0: Moments, at_1: Moments, at_2: Moments, n: int) -> tuple[Table, Table, Table]:
    """Leave-one-out centring makes a group's mean of X (F - mean of the others' F), X = W S, the
    sample covariance of X and F: its mean, its variance over groups of n, and its central third
    moment with L. Variance of a sample covariance: Kendall and Stuart, vol. 1, §13."""
    x, y, xy = at_1.fs[0, 1], at_0.fs[1, 0], at_1.fs[1, 1]
    xx, yy = at_2.fs[0, 2], at_0.fs[2, 0]
    c11, c20, c02 = xy - x * y, xx - x**2, yy - y**2
    c22 = (
        at_2.fs[2, 2] - 2 * y * at_2.fs[1, 2] - 2 * x * at_1.fs[2, 1]
        + y**2 * xx + x**2 * yy + 4 * x * y * xy - 3 * x**2 * y**2
    )  # fmt: skip
    variance = c22 / n - c11**2 * (n - 2) / (n * (n - 1)) + c20 * c02 / (n * (n - 1))
    inner = at_0.fsl
    third = (
        inner[1, 1] - y * inner[0, 1] - x * inner[1, 0] + x * y * inner[0, 0]
        - c11 * inner[0, 0]
    )  # fmt: skip
    return c11, variance, third
