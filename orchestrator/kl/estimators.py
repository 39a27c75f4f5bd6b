"""Every KL estimator, once, for NumPy arrays and torch tensors alike.

x = log pi_theta - log pi_ref of a sampled token (so log r = -x); w = pi_theta / pi_rollout, of the
token or of its whole sequence. NumPy is imported by what needs it: backends name their bounds here.
"""

from typing import Any, Literal, NamedTuple

from orchestrator.settings import Estimator

Array = Any
"""numpy.ndarray or torch.Tensor; results are of the kind given."""

Form = Estimator | Literal["sg_rho_k1", "sg_rho_k3"]
"""Every estimator of a spec, and the two weighted ones that only the laboratory knows."""

Ratio = Literal["token", "sequence", "none"]
"""Whose importance ratio pi_theta / pi_rollout weights a term: each token's own, the product over
its sequence, or none at all."""

Centring = Literal["none", "leave_one_out", "same_batch_mean"]
"""What is subtracted from the KL of a rollout: nothing, the mean of the other rollouts of its
group, or the mean of the whole group."""


class Clamp(NamedTuple):
    """Bounds a library puts on an estimate: on |log r| before it, on |estimate| after it."""

    log_ratio: float | None = None
    value: float | None = None


UNCLAMPED = Clamp()
VERL_K3 = Clamp(log_ratio=20.0, value=10.0)
"""verl 0.9.1, kl_penalty `k3` and `low_var_kl`."""
OPENRLHF = Clamp(value=10.0)
"""OpenRLHF >= 0.8.6, compute_approx_kl, every estimator."""


class EstimatorParts(NamedTuple):
    """The parts of an estimator's name: `sg_rho_k2` is k2 with a detached ratio."""

    plain: str
    ratio: Literal["none", "attached", "detached"]
    straight_through: bool


def shape(form: Form) -> EstimatorParts:
    """Take an estimator's name apart."""
    if form.endswith("+"):
        return EstimatorParts(form[:-1], "none", straight_through=True)
    if "rho_" in form:
        detached = form.startswith("sg_")
        plain = form.rpartition("rho_")[2]
        return EstimatorParts(plain, "detached" if detached else "attached", straight_through=False)
    return EstimatorParts(form, "none", straight_through=False)


def token_kl(
    estimator: Form,
    logp: Array,
    logp_ref: Array,
    logp_rollout: Array | None = None,
    *,
    ratio: Ratio = "token",
    mask: Array | None = None,
    clamp: Clamp = UNCLAMPED,
) -> Array:
    """The KL estimate of each token, shape of `logp` ([..., T], nats).

    With torch it is differentiable in `logp`, with the gradient the name promises.
    `logp_rollout` is needed by the rho forms and carries no gradient; `mask` ([..., T], 1 for
    response tokens) bounds the product of a sequence ratio.
    Source: paper eq. 11, 14; blog §3, §6; verl 0.9.1 core_algos.kl_penalty for `+`.
    """
    x = logp - logp_ref
    if estimator == "none":
        return 0.0 * x
    plain, weighting, straight_through = shape(estimator)
    value = clamped_value(plain, x, clamp)
    if straight_through:
        slope = clamped_value("k2", x)
        return slope - detach(slope) + detach(value)
    if weighting == "none":
        return value
    if logp_rollout is None:
        raise TypeError(f"estimator '{estimator}' needs the rollout policy's log-probabilities")
    weight = importance_ratio(logp, logp_rollout, ratio, mask)
    return (detach(weight) if weighting == "detached" else weight) * value


def importance_ratio(
    logp: Array, logp_rollout: Array, ratio: Ratio, mask: Array | None = None
) -> Array:
    """pi_theta / pi_rollout, differentiable in `logp`: [..., T], or [..., 1] of a sequence."""
    log_ratio = logp - detach(logp_rollout)
    if mask is not None:
        log_ratio = log_ratio * mask
    if ratio == "none":
        log_ratio = 0.0 * detach(log_ratio)
    elif ratio == "sequence":
        log_ratio = log_ratio.sum(-1)[..., None]
    return _exp(log_ratio)


def clamped_value(plain: str, x: Array, clamp: Clamp = UNCLAMPED) -> Array:
    """k1, k2, k3 or abs of x, within the bounds of `clamp`."""
    return _bounded(_plain(plain, _bounded(x, clamp.log_ratio)), clamp.value)


def slope(form: Form, x: Array, clamp: Clamp = UNCLAMPED) -> Array:
    """d estimate / d log pi_theta, the ratio's own gradient left out; 0 where a clamp binds."""
    import numpy as np

    plain, _, straight_through = shape(form)
    if straight_through:
        return x
    bare = {"k1": np.ones_like(x), "k2": x, "k3": -np.expm1(-x), "abs": np.sign(x)}[plain]
    free = np.ones_like(x, dtype=bool)
    if clamp.log_ratio is not None:
        free &= abs(x) <= clamp.log_ratio
    if clamp.value is not None:
        free &= abs(_plain(plain, x)) <= clamp.value
    return np.where(free, bare, 0.0)


def centre(kl: Array, centring: Centring) -> Array:
    """The KL of each rollout ([..., G], G rollouts of a group) less its baseline."""
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
    """x without its gradient; NumPy arrays have none."""
    return x.detach() if hasattr(x, "detach") else x


def _plain(name: str, x: Array) -> Array:
    if name == "k1":
        return x
    if name == "k2":
        return x * x / 2
    if name == "k3":
        return _expm1(-x) + x
    if name == "abs":
        return abs(x)
    raise ValueError(f"no KL estimator is called '{name}'")


def _bounded(x: Array, bound: float | None) -> Array:
    return x if bound is None else x.clip(-bound, bound)


def _exp(x: Array) -> Array:
    if hasattr(x, "exp"):
        return x.exp()
    import numpy as np

    return np.exp(x)


def _expm1(x: Array) -> Array:
    if hasattr(x, "expm1"):
        return x.expm1()
    import numpy as np

    return np.expm1(x)
