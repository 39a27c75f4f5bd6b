"""Naming the objective a gradient belongs to, by exact agreement at several generic settings."""

from collections.abc import Mapping, Sequence
from itertools import combinations, product

import numpy as np

from orchestrator.semantics.catalogue import CATALOGUE, Naming, Objective
from orchestrator.semantics.model import Policy, Setting, Table

TOLERANCE = 1e-9
"""Relative to the largest gradient compared; the two calculations agree to 1e-13."""

MAX_TERMS = 3
TINY = 1e-300
"""Divided by where everything is zero: policy and reference policy are one."""

GENERIC = (
    (Policy(0.37, 0.11), Policy(-0.23, 0.19), Policy(0.05, 0.23)),
    (Policy(-0.61, 0.07), Policy(0.42, -0.13), Policy(-0.29, -0.17)),
    (Policy(0.83, -0.21), Policy(0.19, 0.08), Policy(1.12, -0.05)),
)
"""Policy, reference policy, rollout policy: parameters with no symmetry between them."""


def generic_settings(*, on_policy: bool, num_tokens: int = 5) -> tuple[Setting, ...]:
    """The settings at which a gradient must agree with an objective to bear its name."""
    return tuple(
        Setting(policy, reference, num_tokens, None if on_policy else rollout)
        for policy, reference, rollout in GENERIC
    )


def name_objective(
    gradient: Table,
    candidates: Sequence[Mapping[str, Table]],
    *,
    magnitude: float,
    tolerance: float = TOLERANCE,
) -> Naming:
    """The shortest signed sum of at most three candidates equal to `gradient` at every setting.

    `gradient` [settings, 2] and `candidates`, one mapping per setting, key -> [2]. `magnitude` is
    the size of one sequence's gradient: a mean far below it is zero. Where no sum is equal, a
    single candidate proportional to it, with its scale. Ties go to the order of CATALOGUE.
    """
    target = np.asarray(gradient).reshape(-1)
    if np.abs(target).max() <= tolerance * magnitude:
        return Naming(Objective.ZERO, ())
    keys = [key for key in CATALOGUE if all(key in each for each in candidates)]
    matrix = np.stack([np.concatenate([each[key] for each in candidates]) for key in keys])
    limit = tolerance * max(float(np.abs(matrix).max()), magnitude)
    for size in range(1, MAX_TERMS + 1):
        terms = _signed_sum(target, matrix, size, limit)
        if terms:
            named = tuple((sign, keys[i]) for sign, i in terms)
            alone = CATALOGUE[named[0][1]].kind if named[0][0] > 0 else Objective.SURROGATE
            return Naming(alone if size == 1 else Objective.MIXTURE, named)
    return _proportional(target, matrix, keys, tolerance)


def _signed_sum(
    target: Table, matrix: Table, size: int, limit: float
) -> list[tuple[int, int]] | None:
    chosen = np.array(list(combinations(range(len(matrix)), size)))
    for signs in product((1, -1), repeat=size):
        sums = np.tensordot(np.array(signs), matrix[chosen], axes=([0], [1]))
        fits = np.flatnonzero(np.abs(sums - target).max(1) <= limit)
        if len(fits):
            return list(zip(signs, map(int, chosen[fits[0]]), strict=True))
    return None


def _proportional(target: Table, matrix: Table, keys: list[str], tolerance: float) -> Naming:
    for key, row in zip(keys, matrix, strict=True):
        scale = float(row @ target / max(row @ row, TINY))
        if np.abs(target - scale * row).max() <= tolerance * np.abs(target).max():
            kind = CATALOGUE[key].kind if scale > 0 else Objective.SURROGATE
            return Naming(kind, ((1 if scale > 0 else -1, key),), abs(scale))
    return Naming(Objective.UNKNOWN, ())


def distances(gradient: Table, candidates: Sequence[Mapping[str, Table]]) -> dict[str, float]:
    """How far `gradient` is from each candidate, nearest first: |g - c| / max(|g|, |c|).

    Lengths are over all settings and both parameters; 0 is equality. The distance from zero is in
    lengths of the longest candidate.
    """
    others = {
        key: np.stack([np.asarray(each[key]) for each in candidates])
        for key in CATALOGUE
        if all(key in each for each in candidates)
    }
    length = float(np.linalg.norm(gradient))
    lengths = {key: float(np.linalg.norm(other)) for key, other in others.items()}
    found = {"zero": length / max(length, *lengths.values(), TINY)}
    for key, other in others.items():
        found[key] = float(np.linalg.norm(gradient - other)) / max(length, lengths[key], TINY)
    return dict(sorted(found.items(), key=lambda item: item[1]))
