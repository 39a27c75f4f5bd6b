"""Compute exact gradients of the catalogue's objectives, and name the objective of a gradient.

This module computes gradients from occupancies and value functions, and laboratory.py from moments.
So naming an objective compares two independent calculations. `name_objective` requires agreement at
several settings without symmetry.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations, product

import numpy as np

from orchestrator.estimators import entry, plain_names
from orchestrator.exact.laboratory import (
    FloatTable,
    LabPolicy,
    LabSetting,
    Tables,
    ToyPolicy,
    WidePolicy,
    tables,
)
from orchestrator.kl.catalogue import Naming, ObjectiveKind, catalogue, surrogates
from orchestrator.kl.estimators import clamped_value, slope, vocabulary_kl, vocabulary_slope

TOLERANCE = 1e-9
"""Relative to the largest gradient in the comparison. The two calculations agree to 1e-13."""

MAX_TERMS = 3
TINY = 1e-300
"""Lower bound of a divisor, for settings in which all gradients are zero."""

GENERIC = (
    (ToyPolicy(0.37, 0.11), ToyPolicy(-0.23, 0.19), ToyPolicy(0.05, 0.23)),
    (ToyPolicy(-0.61, 0.07), ToyPolicy(0.42, -0.13), ToyPolicy(-0.29, -0.17)),
    (ToyPolicy(0.83, -0.21), ToyPolicy(0.19, 0.08), ToyPolicy(1.12, -0.05)),
)
"""Policy, reference policy, rollout policy, with parameters that have no symmetry."""


def gradients(setting: LabSetting, over: Sequence[str] = ()) -> dict[str, FloatTable]:
    """Return the exact gradient [parameters] of every candidate that is distinct in this setting.

    `over`: estimators over the vocabulary. Their objectives are candidates too.
    """
    table = tables(setting)
    q, mu = _Walk(setting.policy, table), _Walk(setting.sampler, table)
    p = _Walk(setting.reference, table)
    result = {
        "sequence_reverse_kl": q.policy_gradient(table.x, table.logp),
        # The gradient of KL(p || q) in q is -E_p[grad log q].
        "sequence_forward_kl": -p.direct(np.ones_like(table.x), table.logp_ref),
    }
    result |= _token_level(q, table, "")
    for k in surrogates():
        cost = clamped_value(k, table.x)
        score = q.policy_gradient(cost, table.logp)
        result[f"mean_{k}"] = score + q.direct(slope(k, table.x), table.logp)
    for name in over:
        result |= _over_vocabulary(name, q, mu, table, on_policy=setting.on_policy)
    if setting.on_policy:
        return result
    result |= _token_level(mu, table, "@rollout")
    lag = table.logp_rollout - table.logp_ref
    for k in plain_names():
        result[f"sampled_{k}"] = mu.direct(slope(k, table.x), table.logp_rollout)
        result[f"ppo_{k}"] = mu.policy_gradient(clamped_value(k, table.x), table.logp)
        result[f"frozen_{k}"] = q.policy_gradient(clamped_value(k, lag), table.logp)
        result[f"ppo_{k}@rollout_kl"] = mu.policy_gradient(clamped_value(k, lag), table.logp)
        weighted = table.w * clamped_value(k, table.x)
        result[f"ppo_rho_{k}"] = mu.policy_gradient(weighted, table.logp)
    return result


def _over_vocabulary(
    name: str, q: "_Walk", mu: "_Walk", table: Tables, *, on_policy: bool
) -> dict[str, FloatTable]:
    """Return the gradients of the objectives of an estimator over the vocabulary."""
    inner = vocabulary_slope(name, table.logp.T, table.logp_ref.T).T

    def cost(logp: FloatTable) -> FloatTable:
        value = np.asarray(vocabulary_kl(name, logp.T, table.logp_ref.T))
        return value + np.zeros_like(table.x)

    form, result = entry(name), {}
    if not form.is_reverse_kl:
        frozen = q.policy_gradient(cost(table.logp), table.logp)
        result[f"mean_{name}"] = frozen + q.direct(inner, table.logp)
    if not form.descends:
        result[f"token_{name}"] = q.direct(inner, table.logp)
    if on_policy:
        return result
    if not form.descends:
        result[f"token_{name}@rollout"] = mu.direct(inner, table.logp)
    lag = cost(table.logp_rollout)
    return result | {
        f"ppo_{name}": mu.policy_gradient(cost(table.logp), table.logp),
        f"frozen_{name}": q.policy_gradient(lag, table.logp),
        f"ppo_{name}@rollout_kl": mu.policy_gradient(lag, table.logp),
        "token_kl_to_rollout": mu.direct(table.logp - table.logp_rollout, table.logp),
    }


def _token_level(walk: "_Walk", table: Tables, at: str) -> dict[str, FloatTable]:
    """Return the gradients of the objectives in which only the next token depends on the policy.

    `walk` gives the states, which stay fixed.
    """
    result = {
        f"token_reverse_kl{at}": walk.direct(table.x, table.logp),
        f"token_forward_kl{at}": -walk.direct(np.ones_like(table.x), table.logp_ref),
        f"total_variation{at}": walk.direct(np.sign(table.x), table.logp),
    }
    for k in surrogates():
        inner = clamped_value(k, table.x) + slope(k, table.x)
        result[f"token_{k}{at}"] = walk.direct(inner, table.logp)
    for k in plain_names():
        if not entry(k).descends:
            result[f"slope_{k}{at}"] = walk.direct(slope(k, table.x), table.logp)
    return result


class _Walk:
    """One policy's occupancy of the states (t, c). Its methods return gradients [parameters]."""

    def __init__(self, policy: LabPolicy, table: Tables) -> None:
        self.score = table.score
        num_tokens = table.x.shape[1]
        self.probability = np.exp(policy.logp(num_tokens))
        self.occupancy = np.zeros((num_tokens, num_tokens))
        at = np.eye(1, num_tokens)[0]
        for t in range(num_tokens):
            self.occupancy[t] = at
            leaving = self.probability * at
            # An even token keeps the count, an odd one raises it by one.
            at = leaving[::2].sum(0)
            at[1:] += leaving[1::2].sum(0)[:-1]

    def direct(self, inner: FloatTable, logp_token: FloatTable) -> FloatTable:
        """Return the sum over visited states of E_(y ~ token) [inner(y, c) score(y, c)]."""
        weight = self.occupancy.sum(0) * np.exp(logp_token)
        return np.asarray((self.score * weight * inner).sum((1, 2)))

    def policy_gradient(self, cost: FloatTable, logp_token: FloatTable) -> FloatTable:
        """Return the gradient of a frozen cost [V, T], if `logp_token` gives the next token.

        This policy gives the states and the later tokens. With this policy's own `logp_token` the
        result is the gradient of its expected cost. With another policy's it is the gradient of
        PPO's surrogate.
        """
        num_tokens = cost.shape[1]
        token = np.exp(logp_token)
        future = np.zeros(num_tokens + 1)
        total = np.zeros(len(self.score))
        for t in reversed(range(num_tokens)):
            # The KL from this token on: its own, and the expected KL after the count that follows
            # it.
            to_go = cost + np.stack([future[y % 2 : num_tokens + y % 2] for y in range(len(cost))])
            total += (self.score * token * to_go * self.occupancy[t]).sum((1, 2))
            future = np.append((self.probability * to_go).sum(0), 0.0)
        return total


def wide_policy(scale: float, phase: float) -> WidePolicy:
    """Return a policy over eight tokens without symmetry. Its logits are waves over the tokens."""
    tokens = np.arange(1, 8)
    a = scale * np.sin(1.7 * tokens + phase)
    b = scale * np.cos(2.3 * tokens + phase) / 10
    return WidePolicy(tuple(map(float, a)), tuple(map(float, b)))


WIDE = tuple(
    (wide_policy(1.3, shift), wide_policy(1.0, shift + 0.4), wide_policy(1.2, shift + 0.2))
    for shift in (0.0, 1.1, 2.7)
)
"""The same as GENERIC for eight tokens: for estimators that keep only some tokens."""


def generic_settings(
    *, on_policy: bool, num_tokens: int = 5, wide: bool = False
) -> tuple[LabSetting, ...]:
    """Return the settings at which a gradient must equal an objective's gradient to be named so."""
    return tuple(
        LabSetting(policy, reference, num_tokens, None if on_policy else rollout)
        for policy, reference, rollout in (WIDE if wide else GENERIC)
    )


def name_objective(
    gradient: FloatTable,
    candidates: Sequence[Mapping[str, FloatTable]],
    *,
    magnitude: float,
    tolerance: float = TOLERANCE,
) -> Naming:
    """Return the shortest signed sum of at most three candidates that equals `gradient`.

    `gradient`: [settings, parameters]. `candidates`: one mapping per setting, key -> [parameters].
    `magnitude`: the size of one sequence's gradient; a mean far below it is zero. If no sum is
    equal, return a candidate that is proportional to the gradient, with its scale. Otherwise return
    the kind UNKNOWN. Of equal sums, the first in the catalogue wins.
    """
    target = np.asarray(gradient).reshape(-1)
    if np.abs(target).max() <= tolerance * magnitude:
        return Naming(ObjectiveKind.ZERO, ())
    keys = [key for key in catalogue() if all(key in each for each in candidates)]
    matrix = np.stack([np.concatenate([each[key] for each in candidates]) for key in keys])
    limit = tolerance * max(float(np.abs(matrix).max()), magnitude)
    for size in range(1, MAX_TERMS + 1):
        terms = _signed_sum(target, matrix, size, limit)
        if terms:
            named = tuple((sign, keys[i]) for sign, i in terms)
            alone = catalogue()[named[0][1]].kind if named[0][0] > 0 else ObjectiveKind.SURROGATE
            return Naming(alone if size == 1 else ObjectiveKind.MIXTURE, named)
    return _proportional(target, matrix, keys, tolerance)


def _signed_sum(
    target: FloatTable, matrix: FloatTable, size: int, limit: float
) -> list[tuple[int, int]] | None:
    chosen = np.array(list(combinations(range(len(matrix)), size)))
    for signs in product((1, -1), repeat=size):
        sums = np.tensordot(np.array(signs), matrix[chosen], axes=([0], [1]))
        fits = np.flatnonzero(np.abs(sums - target).max(1) <= limit)
        if len(fits):
            return list(zip(signs, map(int, chosen[fits[0]]), strict=True))
    return None


def _proportional(
    target: FloatTable, matrix: FloatTable, keys: list[str], tolerance: float
) -> Naming:
    for key, row in zip(keys, matrix, strict=True):
        scale = float(row @ target / max(row @ row, TINY))
        if np.abs(target - scale * row).max() <= tolerance * np.abs(target).max():
            kind = catalogue()[key].kind if scale > 0 else ObjectiveKind.SURROGATE
            return Naming(kind, ((1 if scale > 0 else -1, key),), abs(scale))
    return Naming(ObjectiveKind.UNKNOWN, ())
