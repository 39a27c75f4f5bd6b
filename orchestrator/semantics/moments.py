"""Exact joint moments of sums along a sequence, by dynamic programming over the count of ones.

F, S and L are sums over tokens of tables f, s, l of (y, c). The state after t tokens is the count
c; with it travel the unnormalised moments E[F^i S^j L^k; c]. One token costs O(T), so T tokens
cost O(T^2), for any number of rows (configurations and parameters) at once.
"""

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


class Moments(NamedTuple):
    """Moments of (F, S, L) under the measure they were taken with; each ends in [rows]."""

    fs: Array
    """[3, 3, rows]: E[F^i S^j]."""
    fsl: Array
    """[2, 2, rows]: E[F^i S^j L]."""
    ll: Array
    """[rows]: E[L^2]."""


def moments(measure: Array, f: Array, s: Array, l: Array) -> Moments:  # noqa: E741  (f, s and l: the three tables of a configuration)
    """Moments up to F^2 S^2, F S L and L^2.

    All tables are [2, T, rows]: token, count, row. `measure` is the weight of a token (its
    probability, times a power of a ratio for moments of a weighted sum); it need not add up to 1.
    """
    num_tokens, rows = measure.shape[1:]
    kind = measure.dtype
    fs = np.zeros((3, 3, num_tokens + 1, rows), kind)
    fsl = np.zeros((2, 2, num_tokens + 1, rows), kind)
    ll = np.zeros((num_tokens + 1, rows), kind)
    fs[0, 0, 0] = measure[0, 0] * 0 + 1
    for t in range(num_tokens):
        reached = slice(0, t + 1)
        old = Moments(fs[:, :, reached].copy(), fsl[:, :, reached].copy(), ll[reached].copy())
        for part in (fs, fsl):
            part[:, :, : t + 2] = 0
        ll[: t + 2] = 0
        for y in (0, 1):
            step = _append(old, f[y, reached], s[y, reached], l[y, reached])
            to, weight = slice(y, t + 1 + y), measure[y, reached]
            fs[:, :, to] += step.fs * weight
            fsl[:, :, to] += step.fsl * weight
            ll[to] += step.ll * weight
    return Moments(fs.sum(2), fsl.sum(2), ll.sum(0))


def _append(old: Moments, f: Array, s: Array, l: Array) -> Moments:  # noqa: E741  (f, s and l: the three tables of a configuration)
    """Moments of (F + f, S + s, L + l): (F + f)^2 = F^2 + 2 F f + f^2, and so on."""
    fs, fsl = old.fs.copy(), old.fsl.copy()
    ll = old.ll + l * (2 * fsl[0, 0] + l * fs[0, 0])
    fsl += l * fs[:2, :2]
    fs[2] += f * (2 * fs[1] + f * fs[0])
    fs[1] += f * fs[0]
    fs[:, 2] += s * (2 * fs[:, 1] + s * fs[:, 0])
    fs[:, 1] += s * fs[:, 0]
    fsl[1] += f * fsl[0]
    fsl[:, 1] += s * fsl[:, 0]
    return Moments(fs, fsl, ll)
