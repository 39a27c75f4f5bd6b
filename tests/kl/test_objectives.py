"""The candidates are what their names say, and a name is given only where it is deserved."""

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
from tests.kl.brute import Brute, chain

Q, P, MU = ToyPolicy(0.31, -0.12), ToyPolicy(-0.4, 0.2), ToyPolicy(0.6, 0.07)
T = 5
UNNAMED = ("ppo_rb_k1", "frozen_rb_k1")
"""Candidates that no row of the table follows."""


@pytest.mark.parametrize(
    "key",
    [
        key
        for key in gradients(LabSetting(Q, P, T, MU), vocabulary_names())
        if "top4" not in key and key not in UNNAMED
    ],
)
def test_a_candidate_is_the_derivative_of_its_objective(key: str) -> None:
    """Every objective by its definition over every response."""
    brute = Brute(chain(T, Q, P), MU)
    found = gradients(LabSetting(Q, P, T, MU), vocabulary_names())[key]
    assert found == pytest.approx(brute.objective(key), rel=1e-10, abs=1e-12)


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
