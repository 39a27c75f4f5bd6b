"""The candidates are what their names say, and a name is given only where it is deserved."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.estimators import vocabulary_names
from orchestrator.exact.laboratory import LabSetting, ToyPolicy, exact
from orchestrator.exact.objectives import generic_settings, gradients, name_objective
from orchestrator.kl.catalogue import ObjectiveKind, catalogue
from orchestrator.kl.configuration import KlConfiguration
from orchestrator.kl.table import stored_rows
from tests.kl import enumeration

Q, P, MU = ToyPolicy(0.31, -0.12), ToyPolicy(-0.4, 0.2), ToyPolicy(0.6, 0.07)
T = 5
STEP = 1e-4


class XP:
    exp, log, mpf = math.exp, math.log, float


def derivative(value: Callable[[ToyPolicy], float]) -> np.ndarray:
    """Fourth-order differences."""
    found = []
    for j in (0, 1):
        total = 0.0
        for factor, weight in ((-2, 1), (-1, -8), (1, 8), (2, -1)):
            moved = list(Q)
            moved[j] += factor * STEP
            total += weight * value(ToyPolicy(*moved))
        found.append(total / (12 * STEP))
    return np.array(found)


def over(sampler: ToyPolicy, policy: ToyPolicy, per_token: Callable[[Any], float]) -> float:
    """E over sequences of `sampler` of a sum over tokens; rows hold q (policy), p and mu."""
    setting = LabSetting(policy, P, T, sampler)
    return sum(
        s.probability * sum(per_token(row) for row in s.rows)
        for s in enumeration.sequences(setting, XP)
    )


def states_of(
    sampler: ToyPolicy, policy: ToyPolicy, divergence: Callable[[float, float], float]
) -> float:
    """Sum over the states that `sampler` visits of a divergence of next-token distributions."""
    setting, total = LabSetting(policy, P, T, sampler), 0.0
    for s in enumeration.sequences(setting, XP):
        for row in s.rows:
            total += s.probability * (divergence(row.q, row.p) + divergence(1 - row.q, 1 - row.p))
    return total


LOG = math.log
DEFINITIONS: dict[str, Callable[[ToyPolicy], float]] = {
    "sequence_reverse_kl": lambda q: over(q, q, lambda row: row.x),
    "sequence_forward_kl": lambda q: over(P, q, lambda row: -row.x),
    "mean_k2": lambda q: over(q, q, lambda row: row.x**2 / 2),
    "mean_abs": lambda q: over(q, q, lambda row: abs(row.x)),
    "sampled_k1": lambda q: over(MU, q, lambda row: row.x),
    "sampled_k2": lambda q: over(MU, q, lambda row: row.x**2 / 2),
    "sampled_k3": lambda q: over(MU, q, lambda row: math.exp(-row.x) - 1 + row.x),
    "sampled_abs": lambda q: over(MU, q, lambda row: abs(row.x)),
    "frozen_k1": lambda q: over(q, MU, lambda row: row.x),
    "frozen_k3": lambda q: over(q, MU, lambda row: math.exp(-row.x) - 1 + row.x),
}
for at, sampler in (("", Q), ("@rollout", MU)):
    DEFINITIONS |= {
        f"token_reverse_kl{at}": lambda q, s=sampler: states_of(s, q, lambda a, b: a * LOG(a / b)),
        f"token_forward_kl{at}": lambda q, s=sampler: states_of(s, q, lambda a, b: b * LOG(b / a)),
        f"total_variation{at}": lambda q, s=sampler: states_of(s, q, lambda a, b: abs(a - b)),
        f"token_k2{at}": lambda q, s=sampler: states_of(s, q, lambda a, b: a * LOG(a / b) ** 2 / 2),
        f"token_abs{at}": lambda q, s=sampler: states_of(s, q, lambda a, b: a * abs(LOG(a / b))),
    }


@pytest.mark.parametrize("key", DEFINITIONS)
def test_a_candidate_is_the_derivative_of_its_objective(key: str) -> None:
    """Every objective by brute force, differentiated by differences."""
    found = gradients(LabSetting(Q, P, T, MU))[key]
    assert found == pytest.approx(derivative(DEFINITIONS[key]), rel=2e-8, abs=1e-10)


def test_ppo_surrogates_by_brute_force() -> None:
    """E_mu[sum_t w_t s_t sum over all tokens of the cost]: past tokens do not matter."""
    found = gradients(LabSetting(Q, P, T, MU))
    costs: dict[str, Callable[[Any], float]] = {
        "ppo_k1": lambda row: row.x,
        "ppo_k2": lambda row: row.x**2 / 2,
        "ppo_rho_k3": lambda row: row.w * (math.exp(-row.x) - 1 + row.x),
        "ppo_k1@rollout_kl": lambda row: row.x_mu,
    }
    for key, cost in costs.items():
        wanted = np.zeros(2)
        for s in enumeration.sequences(LabSetting(Q, P, T, MU), XP):
            whole = sum(cost(row) for row in s.rows)
            for j in (0, 1):
                wanted[j] += s.probability * whole * sum(row.w * row.score[j] for row in s.rows)
        assert found[key] == pytest.approx(wanted, rel=1e-12)


def test_every_candidate_is_computed_somewhere() -> None:
    off = gradients(LabSetting(Q, P, T, MU), vocabulary_names())
    assert set(off) == set(catalogue())
    assert set(gradients(LabSetting(Q, P, T), vocabulary_names())) < set(off)


@given(
    parameters=st.tuples(*[st.floats(-1.2, 1.2), st.floats(-0.3, 0.3)] * 3),
    num_tokens=st.integers(1, 10),
)
@settings(max_examples=15, deadline=None)
def test_every_verdict_holds_at_any_parameters(parameters: Any, num_tokens: int) -> None:
    """A name is an identity, not an accident of the settings it was found at."""
    a, b, ra, rb, ma, mb = parameters
    for on_policy in (True, False):
        rollout = None if on_policy else ToyPolicy(ma, mb)
        setting = LabSetting(ToyPolicy(a, b), ToyPolicy(ra, rb), num_tokens, rollout)
        known = gradients(setting, vocabulary_names())
        rows = [
            row
            for row in stored_rows()
            if row.on_policy == on_policy and row.ratio != "sequence_mean"
        ]
        chosen = [
            KlConfiguration(row.estimator, row.placement, row.ratio, reward_kl_of=row.reward_kl_of)
            for row in rows
        ]
        found = exact(setting, chosen)
        if setting.on_policy and not on_policy:
            continue
        for row, mean, size in zip(rows, found.mean, found.magnitude, strict=True):
            wanted = sum((s * known[key] for s, key in row.terms), np.zeros(2))
            scale = max(size.max(), np.abs(wanted).max(), 1e-6)
            assert np.abs(mean - wanted).max() <= 1e-9 * scale, row


def named(gradient: np.ndarray, *, on_policy: bool = True) -> Any:
    candidates = [gradients(each) for each in generic_settings(on_policy=on_policy)]
    return name_objective(gradient, candidates, magnitude=1.0)


def reverse_kl() -> np.ndarray:
    return np.stack(
        [gradients(each)["sequence_reverse_kl"] for each in generic_settings(on_policy=True)]
    )


def test_naming_is_exact_and_not_nearest() -> None:
    right = reverse_kl()
    assert named(right).kind is ObjectiveKind.SEQUENCE_REVERSE_KL
    assert named(right * (1 + 1e-12)).kind is ObjectiveKind.SEQUENCE_REVERSE_KL
    off = right.copy()
    off[1, 0] += 1e-5
    assert named(off).kind is ObjectiveKind.UNKNOWN
    assert named(off).words == "no objective orch knows"
    assert named(np.zeros_like(right)).kind is ObjectiveKind.ZERO


def test_a_scale_and_a_sign_are_told() -> None:
    scaled = named(0.03 * reverse_kl())
    assert (scaled.kind, scaled.words) == (
        ObjectiveKind.SEQUENCE_REVERSE_KL,
        "0.03 × (sequence-level reverse KL)",
    )
    against = named(-reverse_kl())
    assert (against.kind, against.words) == (ObjectiveKind.SURROGATE, "- sequence-level reverse KL")
