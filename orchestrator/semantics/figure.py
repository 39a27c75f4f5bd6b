"""The paper's Fig. 1 as plain data, for the report, `orch lab` and its --json."""

from collections.abc import Sequence
from typing import Any

from orchestrator.semantics.configuration import EXTENDED, FIGURE_1, Configuration
from orchestrator.semantics.laboratory import PARAMETERS, Exact, estimates, exact
from orchestrator.semantics.model import Policy, Setting, Table
from orchestrator.semantics.montecarlo import Estimate, monte_carlo
from orchestrator.semantics.objectives import gradients

DEFAULT = Setting(Policy(-0.33, -0.082), Policy(1.17, 0.037), num_tokens=32)
"""orch's parameters: with them all that the paper says of its Fig. 1 holds."""

CAVEAT = (
    "The paper does not state the parameters of its Fig. 1; the defaults are ours. Which one "
    "has the highest bias or the lowest variance depends on them (orch lab --sweep); that k1 in "
    "the reward is unbiased does not."
)


def figure1(
    setting: Setting = DEFAULT,
    *,
    configurations: Sequence[Configuration] = EXTENDED,
    trials: int = 200,
    sequences: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """Bias and variance of every configuration's gradient, exact and by Monte-Carlo.

    A bias is |expected gradient - gradient of the sequence reverse KL|; a variance is that of a
    trial, the mean over `sequences` sequences. Per parameter, a and b of the policy.
    """
    truth = gradients(setting)["sequence_reverse_kl"]
    known = exact(setting, configurations)
    sampled = monte_carlo(setting, configurations, trials=trials, sequences=sequences, seed=seed)
    z = sampled.z(known)
    rows = [
        {
            "label": configuration.label,
            "estimator": configuration.estimator,
            "placement": configuration.placement,
            "ratio": configuration.ratio,
            "in_paper": configuration in FIGURE_1,
            **{p: _of(known, sampled, z, i, j, truth) for j, p in enumerate(PARAMETERS)},
        }
        for i, configuration in enumerate(configurations)
    ]
    values = estimates(setting)
    return {
        "setting": _plain(setting),
        "caveat": CAVEAT,
        "trials": trials,
        "sequences": sequences,
        "seed": seed,
        "reverse_kl": estimates(Setting(*_target(setting)))["k1"][0],
        "estimates": {k: {"mean": m, "variance": v} for k, (m, v) in values.items()},
        "truth": dict(zip(PARAMETERS, map(float, truth), strict=True)),
        "configurations": rows,
    }


def _target(setting: Setting) -> tuple[Policy, Policy, int]:
    return setting.policy, setting.reference, setting.num_tokens


def _of(
    known: Exact, sampled: Estimate, z: Table, i: int, j: int, truth: Table
) -> dict[str, float]:
    noise = 1e-12 * float(known.magnitude[i, j])
    bias = abs(float(known.mean[i, j] - truth[j]))
    return {
        "mean": float(known.mean[i, j]),
        "bias": bias if bias > noise else 0.0,
        "variance": float(known.variance[i, j]) / sampled.sequences,
        "sampled_mean": float(sampled.mean[i, j]),
        "sampled_bias": float(sampled.bias(truth)[i, j]),
        "sampled_variance": float(sampled.variance[i, j]),
        "z": float(z[i, j]),
    }


def _plain(setting: Setting) -> dict[str, Any]:
    rollout = setting.rollout
    return {
        "policy": setting.policy._asdict(),
        "reference": setting.reference._asdict(),
        "rollout": rollout._asdict() if rollout is not None else None,
        "num_tokens": setting.num_tokens,
    }
