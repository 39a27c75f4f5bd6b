"""Losses and weights reproduce values computed apart, by closed forms and in libraries.

values.json: four responses of 3, 3, 2 and 3 tokens, and for each loss its value and its gradient in
the log-probability of each token.
"""

import json
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.kl.estimators import EngineWeight, weights
from orchestrator.losses.table import POLICY_LOSSES, Bounds, TokenLoss, Tokens

GIVEN = json.loads(Path(__file__).with_name("values.json").read_text(encoding="utf-8"))
EXAMPLE, VALUES = GIVEN["example"], GIVEN["values"]
LOGP, OLD, SAMPLER, MASK = (
    np.array(EXAMPLE[name], dtype=float) for name in ("logp", "logp_old", "logp_sampler", "mask")
)
ADVANTAGE = np.array(EXAMPLE["advantages"])[:, None]
CLIP = Bounds(0.2, 0.28)


def of(
    name: str,
    bounds: Bounds = CLIP,
    weight: EngineWeight | None = None,
    *,
    old: Any = OLD,
) -> Callable[[], TokenLoss]:
    def compute() -> TokenLoss:
        loss = POLICY_LOSSES[name].compute(Tokens(LOGP, old, ADVANTAGE, MASK, bounds))
        by = 1.0 if weight is None else weights(weight, OLD - SAMPLER, MASK)
        return TokenLoss(loss.value * by, loss.slope * by)

    return compute


TOKEN_MEAN = MASK / MASK.sum()
SEQUENCE_MEAN = MASK / MASK.sum(1, keepdims=True) / len(MASK)
CASES: dict[str, tuple[Any, Callable[[], TokenLoss]]] = {
    "token ratio, no clip (importance_sampling)": (MASK, of("ppo", Bounds())),
    "PPO clip": (TOKEN_MEAN, of("ppo")),
    "PPO dual clip": (TOKEN_MEAN, of("ppo", CLIP._replace(dual=3.0))),
    "GSPO (token form), eps 0.0003/0.0004": (SEQUENCE_MEAN, of("gspo", Bounds(3e-4, 4e-4))),
    "GSPO (token form), eps 0.35/0.35": (SEQUENCE_MEAN, of("gspo", Bounds(0.35, 0.35))),
    "CISPO, 1-0.2..1+0.28": (TOKEN_MEAN, of("cispo")),
    "CISPO, 0..5 (ScaleRL)": (TOKEN_MEAN, of("cispo", Bounds(1.0, 4.0))),
    "DPPO-TV, anchor old, truncated at 3": (TOKEN_MEAN, of("dppo_tv", Bounds(0.2, 0.2, 3.0))),
    "DPPO-TV, anchor sampler, ratio": (TOKEN_MEAN, of("dppo_tv", Bounds(0.2, 0.2), old=SAMPLER)),
    "DPPO-KL, anchor old, truncated at 3": (TOKEN_MEAN, of("dppo_kl", Bounds(0.05, 0.05, 3.0))),
    "DPPO-TV + log-ratio squared (Prime-RL default)": (
        TOKEN_MEAN,
        of("dppo_tv_pull", Bounds(0.2, 0.2), old=SAMPLER),
    ),
    "PPO clip x TIS token <= 2": (
        TOKEN_MEAN,
        of("ppo", weight=EngineWeight("tis_token", most=2.0)),
    ),
    "PPO clip x IcePop token 0.5..5": (
        TOKEN_MEAN,
        of("ppo", weight=EngineWeight("mis_token", 0.5, 5.0)),
    ),
    "PPO clip x MIS token <= 2 (weight 0 above)": (
        TOKEN_MEAN,
        of("ppo", weight=EngineWeight("mis_token", most=2.0)),
    ),
    "PPO clip x MIS sequence <= 3 (TRL default)": (
        TOKEN_MEAN,
        of("ppo", weight=EngineWeight("mis_sequence", most=3.0)),
    ),
    "PPO clip x reject token 0.5..2, weight 1 (SkyRL token mask)": (
        TOKEN_MEAN,
        of("ppo", weight=EngineWeight("reject_token", 0.5, 2.0)),
    ),
    "PPO clip x geometric mask 0.85..1.15, weight 1": (
        TOKEN_MEAN,
        of("ppo", weight=EngineWeight("geometric", 0.85, 1.15)),
    ),
    "PPO clip x geometric mask 0.85..1.15, divisor of the kept tokens": (
        # Responses 1 and 3 are kept: 5 tokens.
        MASK / 5,
        of("ppo", weight=EngineWeight("geometric", 0.85, 1.15)),
    ),
    "rollout_is (hard zero outside)": (TOKEN_MEAN, of("rollout_is", old=SAMPLER)),
    "REINFORCE x TIS token <= 2 (w of the present policy / sampler)": (
        TOKEN_MEAN,
        of("cispo", Bounds(inf, 1.0), old=SAMPLER),
    ),
}
NOT_OURS = {"PPO clip x reject response if one token outside 0.5..2 (SkyRL outlier mask)"}
"""No `loss.correction` has it."""


@pytest.mark.parametrize("name", list(CASES))
def test_a_value_computed_elsewhere_is_reproduced(name: str) -> None:
    share, compute = CASES[name]
    loss = compute()
    assert (loss.value * share).sum() == pytest.approx(VALUES[name]["loss"], abs=1e-8)
    np.testing.assert_allclose(loss.slope * share, VALUES[name]["slope"], atol=1e-8)


def test_every_value_has_a_case() -> None:
    assert set(VALUES) == set(CASES) | NOT_OURS
