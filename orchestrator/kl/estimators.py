"""Compute the KL estimate of each token, with its gradient, for NumPy arrays and torch tensors.

It adds to the table of estimators (orchestrator/estimators.py) the operations of a trainer on an
estimate: importance ratios and clamps. `weights` corrects the mismatch between trainer and
inference engine: a trainer multiplies its policy loss, its KL in the loss, or both by the weight.
The exact laboratory and the embedded trainer share them.

x = log pi_theta - log pi_ref of a sampled token (so log r = -x). w = pi_theta / pi_rollout of the
token or of its sequence. Functions import NumPy themselves, because backends import this module for
their clamps and must not load NumPy.
"""

from math import inf
from typing import Literal, NamedTuple

from orchestrator.estimators import NONE, Array, EstimatorEntry, elementwise, entry
from orchestrator.settings import CorrectionKind, EngineCorrection, RatioLevel

Ratio = Literal["token", "sequence", "sequence_mean", "none"]
"""The importance ratio pi_theta / pi_rollout that weights a term: each token's own, the product
over its sequence, their geometric mean (GSPO), or none."""


class Clamp(NamedTuple):
    """A library's bounds: on |log r| before the estimate, and on |estimate| after it."""

    log_ratio: float | None = None
    value: float | None = None


UNCLAMPED = Clamp()


def token_kl(
    estimator: str,
    logp: Array,
    logp_ref: Array,
    logp_rollout: Array | None = None,
    *,
    ratio: RatioLevel = "token",
    mask: Array | None = None,
    clamp: Clamp = UNCLAMPED,
) -> Array:
    """Return the KL estimate of each token in nats, in the shape of `logp`, [..., T].

    With torch it is differentiable in `logp`, with the gradient form of the estimator's entry. The
    weighted forms need `logp_rollout`, which gets no gradient. `mask` ([..., T], 1 for response
    tokens) selects the tokens of a sequence ratio. Raise TypeError if an estimator needs
    `logp_rollout` or whole distributions instead.
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
        # `through - detach(through)` has value 0 and gradient slope(x) * grad x. The sum has the
        # value of the base estimator and the gradient of k2.
        through = detach(form.slope(x)) * x
        return through - detach(through) + detach(value)
    if not form.is_weighted:
        return value
    if logp_rollout is None:
        raise TypeError(f"estimator '{estimator}' needs the rollout policy's log-probabilities")
    weight = importance_ratio(logp, logp_rollout, ratio, mask)
    return (detach(weight) if form.form == "ratio_detached" else weight) * value


def vocabulary_kl(estimator: str, logps: Array, logps_ref: Array) -> Array:
    """Return the KL estimate of each state in nats, [...]. The log-probabilities are [..., V]."""
    form, chance = entry(estimator), elementwise("exp", logps)
    kept = _kept(form, logps, logps_ref)
    total = (chance * form.value(logps - logps_ref) * kept).sum(-1)
    if form.tail:
        others = (chance * (1.0 - kept)).sum(-1)
        total = total + others * form.value(_tail(logps, logps_ref, kept))
    return total


def vocabulary_slope(estimator: str, logps: Array, logps_ref: Array) -> Array:
    """Return h, [..., V]. The gradient of vocabulary_kl is the sum over tokens of pi h grad log pi.

    With value g(x), h = g + g' at the tokens that the estimator keeps. At the other tokens h is the
    tail's g + g', or 0 without a tail.
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
    """Return 1.0 at the tokens that the estimator sums over and 0.0 at others, [..., V]."""
    return _likeliest(logps_ref if form.top_of == "reference" else logps, form.top)


def _likeliest(logps: Array, top: int | None) -> Array:
    """Return 1.0 at the `top` likeliest tokens (and ties) and 0.0 at others, [..., V].

    None: 1.0 everywhere.
    """
    if top is None or top >= logps.shape[-1]:
        # Ones in the shape and the type of the log-probabilities, without a gradient.
        return 0.0 * detach(logps) + 1.0
    if hasattr(logps, "detach"):
        least = logps.detach().topk(top).values[..., -1:]
        return (logps.detach() >= least).to(logps.dtype)
    import numpy as np

    least = np.partition(logps, -top)[..., -top][..., None]
    return (logps >= least).astype(logps.dtype)


def _tail(logps: Array, logps_ref: Array, kept: Array) -> Array:
    """Return log pi / pi_ref of all tokens that are not kept, taken as one token, [...].

    Return 0 if all are kept.
    """
    own, theirs = ((elementwise("exp", each) * (1.0 - kept)).sum(-1) for each in (logps, logps_ref))
    return elementwise("log", own.clip(_LEAST)) - elementwise("log", theirs.clip(_LEAST))


_LEAST = 1e-37
"""Lower bound of a probability before its logarithm; float32's smallest normal number is
1.2e-38."""


def importance_ratio(
    logp: Array, logp_rollout: Array, ratio: RatioLevel, mask: Array | None
) -> Array:
    """Return pi_theta / pi_rollout: per token [..., T], or per sequence [..., 1].

    It is differentiable in `logp`.
    """
    log_ratio = logp - detach(logp_rollout)
    return _ratio_of(ratio.startswith("sequence"), ratio == "sequence_mean", log_ratio, mask)


def _ratio_of(whole: bool, mean: bool, log_ratio: Array, mask: Array | None) -> Array:
    """Return the ratio of each token, or of a whole sequence: its tokens' product or geometric
    mean."""
    if mask is not None:
        log_ratio = log_ratio * mask
    if whole:
        length = log_ratio.shape[-1] if mask is None else mask.sum(-1)
        log_ratio = (log_ratio.sum(-1) / (length if mean else 1))[..., None]
    return elementwise("exp", log_ratio)


def clamped_value(plain: str, x: Array, clamp: Clamp = UNCLAMPED) -> Array:
    """Return the value of a plain estimator at x with the bounds of `clamp`, in the shape of x."""
    return _bounded(entry(plain).value(_bounded(x, clamp.log_ratio)), clamp.value)


def slope(estimator: str, x: Array, clamp: Clamp = UNCLAMPED) -> Array:
    """Return d estimate / d log pi_theta without the gradient of a ratio; 0 where a clamp binds.

    A clamp does not change the gradient of a straight-through form.
    """
    form = entry(estimator)
    if form.is_straight_through:
        return form.slope(x)
    free = abs(x) <= (inf if clamp.log_ratio is None else clamp.log_ratio)
    if clamp.value is not None:
        free = free & (abs(form.value(x)) <= clamp.value)
    return where(free, form.slope(x))


def detach(x: Array) -> Array:
    """Return x without its gradient. Return a NumPy array unchanged."""
    return x.detach() if hasattr(x, "detach") else x


def _bounded(x: Array, bound: float | None) -> Array:
    return x if bound is None else x.clip(-bound, bound)


def where(condition: Array, x: Array) -> Array:
    """Return x where the condition is True, and 0 elsewhere."""
    if hasattr(x, "detach"):
        return x.where(condition, x.new_zeros(()))
    import numpy as np

    return np.where(condition, x, 0.0)


Correction = CorrectionKind
"""The kind of weight, from the ratio proximal policy / engine."""


class EngineWeight(NamedTuple):
    """A kind of weight with its bounds."""

    kind: Correction
    least: float = 0.0
    most: float = inf


def weight_of(correction: EngineCorrection) -> EngineWeight:
    """Return the weight that a cell's settings describe."""
    most = inf if correction.most is None else correction.most
    return EngineWeight(correction.kind, correction.least, most)


def weights(weight: EngineWeight, log_ratio: Array, mask: Array | None = None) -> Array:
    """Return the weights after their bounds: per token [..., T], or per sequence [..., 1].

    log_ratio: [..., T], the log of proximal policy / engine. mask: [..., T], 1 for response tokens
    and 0 for others; None: all tokens are response tokens.
    """
    is_mean = weight.kind == "geometric"
    whole = is_mean or weight.kind.endswith("sequence")
    ratio = _ratio_of(whole, is_mean, log_ratio, mask)
    if weight.kind.startswith("tis"):
        return ratio.clip(weight.least, weight.most)
    within = (ratio >= weight.least) & (ratio <= weight.most)
    # `mis` weighs by the ratio within its bounds; the other kinds only leave samples out.
    value = ratio if weight.kind.startswith("mis") else ratio.clip(1.0, 1.0)
    return where(within, value)
