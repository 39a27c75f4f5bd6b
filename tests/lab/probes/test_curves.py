"""Reading an estimator off its curve: every form of ours, with and without bounds."""

from typing import Any

import numpy as np
import pytest
import torch

from lab.probes.measure import FORMS, WEIGHTS, classify
from lab.probes.protocol import CURVE, NEAR
from orchestrator.estimators import entry
from orchestrator.evidence.stored import curve_text
from orchestrator.kl.estimators import UNCLAMPED, Clamp, token_kl


def answers(form: Any, clamp: Clamp = UNCLAMPED, weight_bound: float | None = None) -> Any:
    """What a library with exactly this estimator would answer."""
    found = {}
    for at, given in WEIGHTS.items():
        logp = torch.tensor((CURVE if given is None else NEAR)[None], requires_grad=True)
        ref, weight = torch.zeros_like(logp), given or 0.0
        bounded = min(weight, np.log(weight_bound)) if weight_bound else weight
        value = token_kl(form, logp, ref, logp.detach() - bounded, clamp=clamp)
        (slope,) = torch.autograd.grad(value.sum(), logp)
        found[at] = {"value": value.tolist(), "slope": slope.tolist()}
    return found


GRADIENTS = {"rho_k3": {"rho_k3", "sg_rho_k2"}, "sg_rho_k2": {"rho_k3", "sg_rho_k2"}}
"""rho_k3's gradient is w x, which is sg_rho_k2's."""


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_recognised(form: str) -> None:
    found = classify(answers(form))
    assert found.value == form.removeprefix("sg_")
    assert found.gradient in GRADIENTS.get(form, {form})
    assert found.deviation < 1e-9
    assert not found.straight_through
    assert found.value_bound is found.weight_bound is None
    if entry(form).base in ("k1", "k2", "k3", "abs"):  # whose gradients vanish nowhere
        assert found.flat_below is found.flat_above is None


@pytest.mark.parametrize("form", ["k1+", "k3+", "abs+"])
def test_a_straight_through_form_has_a_gradient_that_is_not_its_own(form: str) -> None:
    found = classify(answers(form))
    assert found.straight_through
    assert (found.value, found.gradient) == (form[:-1], "k2")
    assert not classify(answers(form[:-1])).straight_through


def test_k2_plus_is_k2() -> None:
    assert not classify(answers("k2+")).straight_through


@pytest.mark.parametrize(("form", "below", "above"), [("k1", -7, 7), ("k2", -3.74, 3.74)])
def test_bounds_are_found_where_they_bind(form: str, below: float, above: float) -> None:
    found = classify(answers(form, Clamp(value=7.0)))
    assert found.value_bound == 7
    assert found.flat_below == pytest.approx(below, abs=0.011)
    assert found.flat_above == pytest.approx(above, abs=0.011)
    assert "held within ±7, no gradient for x <" in curve_text(found)


def test_a_bounded_weight_is_found() -> None:
    found = classify(answers("sg_rho_k2", weight_bound=10.0))
    assert found.weight_bound == pytest.approx(10)
    assert "weight at most 10" in curve_text(found)


def test_what_is_nobodys_is_called_so() -> None:
    points = {at: CURVE if given is None else NEAR for at, given in WEIGHTS.items()}
    strange = {
        at: {"value": [(x**3).tolist()], "slope": [(3 * x**2).tolist()]} for at, x in points.items()
    }
    found = classify(strange)
    assert (found.value, found.gradient) == ("?", "?")
