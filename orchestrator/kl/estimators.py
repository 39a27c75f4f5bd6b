"""Compute the KL estimate of each token, with its gradient, for NumPy arrays and torch tensors.

The estimators themselves are the table of orchestrator/estimators.py, which this module re-exports.
This module adds what a trainer does with one: importance ratios, clamps, centring over a group.

x = log pi_theta - log pi_ref of a sampled token (so log r = -x). w = pi_theta / pi_rollout, of the
token or of its whole sequence. NumPy is imported inside functions, because backends import this
module for their clamps.
"""

from math import inf
from typing import Literal, NamedTuple

from orchestrator.estimators import (
    NONE,
    TABLE,
    Array,
    Credit,
    EstimatorEntry,
    choices,
    entry,
    names,
    plain_names,
    register,
    straight_through,
    unregister,
    weighted,
)

__all__ = [
    "NONE",
    "TABLE",
    "UNCLAMPED",
    "Array",
    "Centring",
    "Clamp",
    "Credit",
    "EstimatorEntry",
    "Ratio",
    "centre",
    "choices",
    "clamped_value",
    "detach",
    "entry",
    "importance_ratio",
    "names",
    "plain_names",
    "register",
    "slope",
    "straight_through",
    "token_kl",
    "unregister",
    "vocabulary_kl",
    "vocabulary_slope",
    "weighted",
    "where",
]

Ratio = Literal["token", "sequence", "sequence_mean", "none"]
"""The importance ratio pi_theta / pi_rollout that weights a term: each token's own, the product
over its sequence, their geometric mean (GSPO), or none."""

Centring = Literal["none", "leave_one_out", "same_batch_mean"]
"""The baseline that is subtracted from the KL of a rollout: none, the mean of the other rollouts of
its group, or the mean of the whole group."""


class Clamp(NamedTuple):
    """The bounds of a library on an estimate: on |log r| before it, on |estimate| after it."""

    log_ratio: float | None = None
    value: float | None = None


UNCLAMPED = Clamp()


def token_kl(
    estimator: str,
    logp: Array,
    logp_ref: Array,
    logp_rollout: Array | None = None,
    *,
    ratio: Ratio = "token",
    mask: Array | None = None,
    clamp: Clamp = UNCLAMPED,
) -> Array:
    """Return the KL estimate of each token, shape of `logp` ([..., T], nats).

    With torch it is differentiable in `logp`, with the gradient that the estimator's entry names.
    `logp_rollout` is needed by the weighted forms and carries no gradient; `mask` ([..., T], 1 for
    response tokens) bounds the product of a sequence ratio.
    Source: paper eq. 11, 14; blog §3, §6; verl 0.9.1 core_algos.kl_penalty for `+`.
    """
    x = logp - logp_ref
    if estimator == NONE:
        return 0.0 * x
    form = entry(estimator)
    if form.is_of_vocabulary:
        raise TypeError(f"estimator '{estimator}' needs whole distributions: use vocabulary_kl")
    value = clamped_value(form.base, x, clamp)
    if form.is_straight_through:
        through = detach(form.slope(x)) * x
        return through - detach(through) + detach(value)
    if not form.is_weighted:
        return value
    if logp_rollout is None:
        raise TypeError(f"estimator '{estimator}' needs the rollout policy's log-probabilities")
    weight = importance_ratio(logp, logp_rollout, ratio, mask)
    return (detach(weight) if form.form == "ratio_detached" else weight) * value


def vocabulary_kl(estimator: str, logps: Array, logps_ref: Array) -> Array:
    """Return the KL estimate of each state [...], in nats, from log-probabilities [..., V]."""
    form, chance = entry(estimator), _exp(logps)
    kept = _kept(form, logps, logps_ref)
    total = (chance * form.value(logps - logps_ref) * kept).sum(-1)
    if form.tail:
        others = (chance * (1.0 - kept)).sum(-1)
        total = total + others * form.value(_tail(logps, logps_ref, kept))
    return total


def vocabulary_slope(estimator: str, logps: Array, logps_ref: Array) -> Array:
    """Return h [..., V]: the gradient of vocabulary_kl is the sum over tokens of pi h grad log pi.

    With value g(x), h = g + g' at the tokens that enter, that of the tail at the others, or 0.
    """
    form = entry(estimator)
    kept = _kept(form, logps, logps_ref)

    def inner(x: Array) -> Array:
        return form.value(x) + form.slope(x)

    result = inner(logps - logps_ref) * kept
    if form.tail:
        result = result + inner(_tail(logps, logps_ref, kept))[..., None] * (1.0 - kept)
    return result


def _kept(form: EstimatorEntry, logps: Array, logps_ref: Array) -> Array:
    """Return [..., V]: 1.0 at the tokens that the estimator sums over, else 0.0."""
    return _likeliest(logps_ref if form.top_of == "reference" else logps, form.top)


def _likeliest(logps: Array, top: int | None) -> Array:
    """Return [..., V]: 1.0 at the `top` likeliest tokens and their equals, else 0.0."""
    if top is None or top >= logps.shape[-1]:
        return 0.0 * detach(logps) + 1.0
    if hasattr(logps, "detach"):
        least = logps.detach().topk(top).values[..., -1:]
        return (logps.detach() >= least).to(logps.dtype)
    import numpy as np

    least = np.partition(logps, -top)[..., -top][..., None]
    return (logps >= least).astype(logps.dtype)


def _tail(logps: Array, logps_ref: Array, kept: Array) -> Array:
    """Return log pi / pi_ref of the tokens that are not kept, as one token; 0 without any."""
    own, theirs = ((_exp(each) * (1.0 - kept)).sum(-1) for each in (logps, logps_ref))
    return _log(own.clip(_LEAST)) - _log(theirs.clip(_LEAST))


_LEAST = 1e-37
"""The smallest normal number of float32, about."""


def importance_ratio(
    logp: Array, logp_rollout: Array, ratio: Ratio, mask: Array | None = None
) -> Array:
    """Return pi_theta / pi_rollout, differentiable in `logp`: [..., T], or [..., 1] of a sequence.

    With the ratio `none` it is 1.
    """
    log_ratio = logp - detach(logp_rollout)
    if mask is not None:
        log_ratio = log_ratio * mask
    if ratio == "none":
        log_ratio = 0.0 * detach(log_ratio)
    elif ratio != "token":
        lengths = log_ratio.shape[-1] if mask is None else mask.sum(-1)
        log_ratio = log_ratio.sum(-1) / (lengths if ratio == "sequence_mean" else 1)
        log_ratio = log_ratio[..., None]
    return _exp(log_ratio)


def clamped_value(plain: str, x: Array, clamp: Clamp = UNCLAMPED) -> Array:
    """Return the value of a plain estimator at x, within the bounds of `clamp`."""
    return _bounded(entry(plain).value(_bounded(x, clamp.log_ratio)), clamp.value)


def slope(estimator: str, x: Array, clamp: Clamp = UNCLAMPED) -> Array:
    """Return d estimate / d log pi_theta without the ratio's own gradient; 0 where a clamp binds.

    A clamp does not bind on the gradient of a straight-through form.
    """
    form = entry(estimator)
    if form.is_straight_through:
        return form.slope(x)
    free = abs(x) <= (inf if clamp.log_ratio is None else clamp.log_ratio)
    if clamp.value is not None:
        free = free & (abs(form.value(x)) <= clamp.value)
    return where(free, form.slope(x))


def centre(kl: Array, centring: Centring) -> Array:
    """Return the KL of each rollout ([..., G], G rollouts of a group) less its baseline."""
    if centring == "none":
        return kl
    total = kl.sum(-1)[..., None]
    size = kl.shape[-1]
    if centring == "same_batch_mean":
        return kl - total / size
    if size < 2:
        raise ValueError("leave_one_out compares the rollouts of a group: it needs at least 2")
    return kl - (total - kl) / (size - 1)


def detach(x: Array) -> Array:
    """Return x without its gradient; NumPy arrays have none."""
    return x.detach() if hasattr(x, "detach") else x


def _bounded(x: Array, bound: float | None) -> Array:
    return x if bound is None else x.clip(-bound, bound)


def _exp(x: Array) -> Array:
    if hasattr(x, "detach"):
        return x.exp()
    import numpy as np

    return np.exp(x)


def _log(x: Array) -> Array:
    if hasattr(x, "detach"):
        return x.log()
    import numpy as np

    return np.log(x)


def where(condition: Array, x: Array) -> Array:
    """Return x where the condition holds, else 0."""
    if hasattr(x, "detach"):
        return x.where(condition, x.new_zeros(()))
    import numpy as np

    return np.where(condition, x, 0.0)
