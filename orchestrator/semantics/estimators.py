"""Every KL estimator, once, for NumPy arrays and torch tensors alike.

x = log pi_theta - log pi_ref of a sampled token (so log r = -x); w = pi_theta / pi_rollout of it.
"""

from typing import Any

import numpy as np

from orchestrator.settings import Estimator

Array = Any
"""numpy.ndarray or torch.Tensor; results are of the kind given."""


def token_kl(
    estimator: Estimator, logp: Array, logp_ref: Array, logp_rollout: Array | None = None
) -> Array:
    """The KL estimate of each token, shape of `logp` ([..., T], nats).

    With torch it is differentiable in `logp`, with the gradient the name promises.
    `logp_rollout` is needed by the rho forms and carries no gradient.
    Source: paper eq. 11, 14; blog §3, §6; verl 0.9.1 core_algos.kl_penalty for `+`.
    """
    x = logp - logp_ref
    if estimator == "none":
        return 0.0 * x
    if estimator.endswith("+"):
        value, slope = _plain(estimator[:-1], x), _plain("k2", x)
        return slope - detach(slope) + detach(value)
    if "rho" in estimator:
        if logp_rollout is None:
            raise TypeError(f"estimator '{estimator}' needs the rollout policy's log-probabilities")
        ratio = _exp(logp - detach(logp_rollout))
        weight = detach(ratio) if estimator.startswith("sg_") else ratio
        return weight * _plain(estimator.rpartition("rho_")[2], x)
    return _plain(estimator, x)


def _plain(name: str, x: Array) -> Array:
    if name == "k1":
        return x
    if name == "k2":
        return x * x / 2
    if name == "k3":
        return _exp(-x) - 1 + x
    if name == "abs":
        return abs(x)
    raise ValueError(f"no KL estimator is called '{name}'")


def detach(x: Array) -> Array:
    """x without its gradient; NumPy arrays have none."""
    return x.detach() if hasattr(x, "detach") else x


def _exp(x: Array) -> Array:
    return x.exp() if hasattr(x, "exp") else np.exp(x)
