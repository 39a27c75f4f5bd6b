"""Every gradient form of the table passes every check: none is named here, so none can escape.

A form is an estimator of the table in a placement, with a ratio, a policy whose KL is in the
reward, on- or off-policy. A gradient form or a credit that brute.py does not know is an error.
The candidates are what their names say, and a name is given only where it is deserved.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any, get_args

import numpy as np
import pytest

from orchestrator.errors import LaboratoryError
from orchestrator.estimators import TABLE, vocabulary_names
from orchestrator.exact.laboratory import LabSetting, ToyPolicy, exact
from orchestrator.exact.objectives import WIDE, generic_settings, gradients, name_objective
from orchestrator.kl.catalogue import ObjectiveKind, catalogue
from orchestrator.kl.configuration import PLACEMENTS, KlConfiguration
from orchestrator.kl.estimators import Ratio
from tests.kl.brute import Brute, chain

TWO = (ToyPolicy(0.3, -0.2), ToyPolicy(-0.5, 0.15), ToyPolicy(0.6, -0.05))
WHERE = ("on", "off")


def forms_of(estimator: str) -> Iterator[KlConfiguration]:
    """Yield every configuration that the laboratory takes, without clamps and charges."""
    for placement, ratio, of in product(PLACEMENTS, get_args(Ratio), ("policy", "rollout")):
        if placement == "loss" and of == "rollout":
            continue
        try:
            yield KlConfiguration(estimator, placement, ratio, reward_kl_of=of)
        except LaboratoryError:
            continue


def setting_of(name: str, where: str) -> LabSetting:
    """Return eight tokens for an estimator that keeps some of them, else two."""
    wide = TABLE[name].top is not None
    policy, reference, rollout = (WIDE[0] if where == "on" else WIDE[1]) if wide else TWO
    return LabSetting(policy, reference, 2 if wide else 4, rollout if where == "off" else None)


def faults(configuration: KlConfiguration, setting: LabSetting) -> list[str]:
    """Return what the laboratory's moments differ in from the brute force."""
    known = exact(setting, [configuration])
    model = chain(setting.num_tokens, setting.policy, setting.reference)
    sampler = np.concatenate([np.atleast_1d(each) for each in setting.sampler])
    mean, variance = Brute(model, sampler).moments(configuration)
    size = known.magnitude[0] + 1e-3
    wrong = {
        "enumeration": np.abs(known.mean[0] - mean) / size > 1e-10,
        "variance": np.abs(known.variance[0] - variance) / size**2 > 1e-9,
    }
    return [f"{configuration.label}: {name}" for name, off in wrong.items() if off.any()]


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", list(TABLE))
def test_it_is_exact_against_enumeration(name: str, where: str) -> None:
    """To 1e-10 of one sequence's gradient by autograd."""
    chosen = list(forms_of(name))
    assert {each.placement for each in chosen} == set(PLACEMENTS)
    setting = setting_of(name, where)
    assert [fault for each in chosen for fault in faults(each, setting)] == []


@pytest.mark.parametrize("name", list(TABLE))
def test_nothing_pulls_where_the_policy_is_the_reference(name: str) -> None:
    """On-policy, over two tokens: of eight, a truncated sum pulls even there."""
    same = LabSetting(TWO[0], TWO[0], 6)
    known = exact(same, list(forms_of(name)))
    assert np.abs(known.mean).max() < 1e-14


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
