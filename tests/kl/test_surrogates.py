"""Surrogates: against the laboratory, and groups written out."""

from itertools import product
from math import inf, sqrt
from typing import Any

import numpy as np
import pytest

from orchestrator.errors import LaboratoryError
from orchestrator.exact.laboratory import LabSetting, exact
from orchestrator.exact.objectives import gradients
from orchestrator.exact.surrogates import (
    MISMATCH,
    PolicyLoss,
    forces,
    weight_effect,
)
from orchestrator.kl.configuration import KlConfiguration
from orchestrator.kl.estimators import EngineWeight
from orchestrator.kl.groups import group_std

P = MISMATCH.policy


@pytest.mark.parametrize("label", ["k1.loss", "k3.loss", "rho_k3.loss", "sg_rho_k2.loss"])
def test_two_policies_are_the_laboratorys(label: str) -> None:
    """The proximal policy is the engine; the dynamic programme gives the gradient."""
    two = MISMATCH._replace(proximal=MISMATCH.engine)
    setting = LabSetting(P, two.reference, two.num_tokens, two.engine)
    estimator = label.removesuffix(".loss")
    mean = exact(setting, [KlConfiguration(estimator, "loss")]).mean[0]
    true = gradients(setting)["sequence_reverse_kl"]
    found = forces(two, PolicyLoss(), estimator, "loss").kl
    assert found.pull == pytest.approx(mean @ true / (true @ true), rel=1e-10)
    assert found.off == pytest.approx(np.linalg.norm(mean - true) / np.linalg.norm(true), rel=1e-9)


def test_the_whole_weight_of_a_sequence_is_exact_and_truncating_it_is_not() -> None:
    own = MISMATCH._replace(proximal=P)
    whole = PolicyLoss("reinforce", correction="tis_sequence", most=inf)
    assert forces(own, whole).reward.off < 1e-12
    for correction in ("tis_sequence", "mis_sequence", "tis_token", "none"):
        how = PolicyLoss("reinforce", correction=correction, most=1.2)
        assert forces(own, how).reward.off > 1e-3, correction


def test_a_correction_of_the_policy_loss_alone_changes_beta() -> None:
    how: dict[str, Any] = {"correction": "mis_token", "most": 1.05}
    alone, both = (
        forces(MISMATCH, PolicyLoss(**how, corrects_kl=each), "k2", "loss")
        for each in (False, True)
    )
    assert alone.reward == both.reward
    assert alone.beta_factor > 1.05 * both.beta_factor


def test_a_weight_outside_the_kl_counts_alike_for_every_estimator() -> None:
    weight = EngineWeight("mis_sequence", most=1.1)
    factors = [weight_effect(weight, each, "loss").beta for each in ("k2", "k3", "rho_k3")]
    assert factors == pytest.approx([factors[0]] * 3, rel=1e-12)
    assert factors[0] > 1.3
    assert weight_effect(weight, "k2", "loss").cut > 0.25
    plain = weight_effect(EngineWeight("tis_token"), "k2", "loss")
    assert plain.cut == 0
    assert plain.smallest < 1 < plain.largest
    assert plain == weight_effect(EngineWeight("tis_token", 0.5, 5.0), "k2", "loss")


def test_a_weight_that_leaves_nothing_has_no_number() -> None:
    with pytest.raises(LaboratoryError, match="no gradient"):
        weight_effect(EngineWeight("mis_token", 50.0, 60.0), "k2", "loss")


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_the_group_deviation_equals_groups_written_out(p: float) -> None:
    """One token, success or not; d p by the score (y - p), and a KL that knows nothing of it."""
    n, found, beta = 4, group_std(p, 4), 1e-6
    by_reward = by_kl = equal = 0.0
    for rewards in product((0, 1), repeat=n):
        chance = float(np.prod([p if r else 1 - p for r in rewards]))
        if len(set(rewards)) == 1:
            equal += chance
            continue
        advantages = standardised(rewards)
        by_reward += chance * sum(a * (r - p) for a, r in zip(advantages, rewards, strict=True)) / n
        for signs in product((-1, 1), repeat=n):  # KL and score of one more coin, independent
            up, down = (
                standardised([r - b * z for r, z in zip(rewards, signs, strict=True)])
                for b in (beta, -beta)
            )
            moved = sum((d - u) * z for u, d, z in zip(up, down, signs, strict=True))
            by_kl += chance / 2**n * moved / (2 * beta) / n
    assert found.reward == pytest.approx(by_reward / (p * (1 - p)), rel=1e-12)
    assert found.beta_in_loss == pytest.approx(p * (1 - p) / by_reward, rel=1e-12)
    assert found.beta_in_reward == pytest.approx(by_kl * p * (1 - p) / by_reward, rel=1e-6)
    assert found.equal == pytest.approx(equal, rel=1e-12)
    assert group_std(p, 2).beta_in_reward == 0, "the advantages of two are ±1/√2 whatever the KL"


def standardised(values: Any) -> list[float]:
    mean = sum(values) / len(values)
    deviation = sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
    return [(v - mean) / deviation for v in values]


@pytest.mark.parametrize(
    ("p", "n", "beta", "deviation"),
    [(0.1, 4, 0.01, 0.75), (0.5, 8, 0.002, 1.0), (0.02, 2, 0.01, 4)],
)
def test_beta_in_the_reward_over_all_groups_is_that_of_sampled_groups(
    p: float, n: int, beta: float, deviation: float
) -> None:
    """A normal KL of its own score, half a million groups, GRPO's advantages."""
    rng = np.random.default_rng(0)
    rewards = (rng.random((500_000, n)) < p).astype(float)
    kl = rng.normal(size=rewards.shape) * deviation

    def advantages(kl: Any) -> Any:
        gained = rewards - beta * kl
        gained = gained - gained.mean(1, keepdims=True)
        return gained / gained.std(1, ddof=1, keepdims=True)

    # Each group with its KL and with the opposite one: what the rewards add cancels.
    of_kl = -((advantages(kl) - advantages(-kl)) * kl).mean() / (2 * beta * deviation**2)
    of_reward = (advantages(kl) * (rewards - p)).mean() / (p * (1 - p))
    assert group_std(p, n).over_all(beta, deviation) == pytest.approx(of_kl / of_reward, rel=0.02)


def test_what_is_refused() -> None:
    with pytest.raises(LaboratoryError, match=r"success must be in \(0, 1\)"):
        group_std(1.0, 8)
    with pytest.raises(LaboratoryError, match="least < most"):
        PolicyLoss(least=3.0, most=2.0)
    with pytest.raises(LaboratoryError, match="use k1 or k3"):
        forces(MISMATCH, PolicyLoss(), "full", "loss")
