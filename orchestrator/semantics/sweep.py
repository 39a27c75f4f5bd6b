"""How often the orderings of the paper's Fig. 1 hold over random parameters of the model."""

import math
from typing import Any

import numpy as np

from orchestrator.errors import LaboratoryError
from orchestrator.semantics.configuration import FIGURE_1
from orchestrator.semantics.laboratory import exact
from orchestrator.semantics.model import Policy, Setting
from orchestrator.semantics.objectives import gradients

ORDERINGS = (
    "k1 in reward is unbiased",
    "k3 in reward has the highest bias of the four",
    "k1 in loss has the lowest variance of the four",
    "k1 in loss has a lower variance than k1 in reward",
    "k3 in reward has the highest bias and k1 in loss the lowest variance",
)
"""Each for both parameters at once. The paper's Fig. 1 shows them all."""

A_RANGE, B_RANGE = 1.5, 0.15
"""a and b of the policy and of the reference policy are uniform in +- these."""


def sweep(*, draws: int = 500, num_tokens: int = 32, seed: int = 0) -> dict[str, Any]:
    """Share of `draws` random settings in which each ordering holds, with 95% intervals."""
    if draws < 1:
        raise LaboratoryError(f"draws must be at least 1, got {draws}")
    rng = np.random.default_rng(seed)
    spread = np.array([A_RANGE, B_RANGE, A_RANGE, B_RANGE])
    parameters = rng.uniform(-spread, spread, (draws, 4))
    held = np.array(
        [
            _orderings(Setting(Policy(*map(float, p[:2])), Policy(*map(float, p[2:])), num_tokens))
            for p in parameters
        ]
    )
    return {
        "draws": draws,
        "num_tokens": num_tokens,
        "seed": seed,
        "ranges": {"a": A_RANGE, "b": B_RANGE},
        "orderings": [
            {"ordering": name, "share": float(column.mean()), "interval": wilson(column)}
            for name, column in zip(ORDERINGS, held.T, strict=True)
        ],
    }


def _orderings(setting: Setting) -> list[bool]:
    found = exact(setting, FIGURE_1)
    truth = gradients(setting)["sequence_reverse_kl"]
    bias, variance = np.abs(found.mean - truth), found.variance
    unbiased = bool((bias[0] <= 1e-9 * found.magnitude[0]).all())
    highest = bool((bias.argmax(0) == 2).all())
    lowest = bool((variance.argmin(0) == 1).all())
    return [unbiased, highest, lowest, bool((variance[1] < variance[0]).all()), highest and lowest]


def wilson(held: "np.ndarray[Any, Any]") -> tuple[float, float]:
    """Wilson's 95% interval of a share."""
    n, share, z = len(held), float(held.mean()), 1.959964
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return max(0.0, middle - half), min(1.0, middle + half)
