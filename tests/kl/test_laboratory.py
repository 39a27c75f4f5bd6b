"""The exact laboratory: clamps against autograd, long sequences, refusals."""

import math
from typing import Any

import numpy as np
import pytest

from orchestrator.errors import LaboratoryError
from orchestrator.exact.laboratory import (
    LabSetting,
    Sequences,
    ToyPolicy,
    exact,
    tables,
)
from orchestrator.exact.objectives import gradients
from orchestrator.kl.configuration import KlConfiguration
from orchestrator.kl.estimators import Clamp


def test_facts_of_the_long_sequence() -> None:
    """T = 256: the configurations that are unbiased still are; k3 in both places is one."""
    setting = LabSetting(ToyPolicy(-0.2, -0.005), ToyPolicy(0.1, 0.002), 256)
    unbiased = (
        KlConfiguration("k1", "reward"),
        KlConfiguration("k1", "reward_and_loss"),
        KlConfiguration("k3", "reward_and_loss"),
    )
    found = exact(setting, unbiased)
    truth = gradients(setting)["sequence_reverse_kl"]
    assert (np.abs(found.mean - truth) <= 1e-12 * found.magnitude).all()


@pytest.mark.parametrize(
    "clamp", [Clamp(20.0, 10.0), Clamp(None, 10.0), Clamp(log_ratio=0.4), Clamp(value=0.3)]
)
def test_a_clamp_takes_the_gradient_away_where_it_binds(clamp: Clamp) -> None:
    """Against torch's own clamp and autograd, over every sequence."""
    import torch

    from orchestrator.kl.estimators import token_kl

    far = LabSetting(ToyPolicy(2.5, 0.4), ToyPolicy(-2.0, -0.3), 5)
    every = Sequences(far)
    reference = torch.tensor(every.logp_ref[:, :-1])
    for estimator in ("k1", "k3"):
        logp = torch.tensor(every.logp_of(far.policy)[:, :-1], requires_grad=True)
        token_kl(estimator, logp, reference, clamp=clamp).sum().backward()  # type: ignore[no-untyped-call]  # torch's
        assert logp.grad is not None
        slopes = every.taken(tables(far).score) * logp.grad.numpy()
        configuration = KlConfiguration(estimator, "loss", clamp=clamp)
        mean = slopes.sum(2) @ every.probability
        assert mean == pytest.approx(exact(far, [configuration]).mean[0], rel=1e-11)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: LabSetting(ToyPolicy(math.nan, 0), ToyPolicy(0, 0), 4), "policy.a must be finite"),
        (
            lambda: LabSetting(ToyPolicy(0, 0), ToyPolicy(0, math.inf), 4),
            "reference.b must be finite",
        ),
        (
            lambda: LabSetting(ToyPolicy(0, 0), ToyPolicy(0, 0), 0),
            "num_tokens must be at least 1, got 0",
        ),
        (lambda: LabSetting(ToyPolicy(0, 0), ToyPolicy(0, 0), 2.5), "whole number"),
        (lambda: LabSetting(ToyPolicy(0, 0), ToyPolicy(0, 0), 4, ToyPolicy(-900, 0)), "no support"),
        (lambda: LabSetting(ToyPolicy(0, 200), ToyPolicy(0, 0), 4), "must stay below 300"),
        (lambda: KlConfiguration("none", "loss"), "no gradient to measure"),
        (lambda: KlConfiguration("k1", "reward_and_loss", ratio="sequence"), "use ratio 'token'"),
        (lambda: KlConfiguration("rho_k1", "reward", ratio="sequence"), "rho_k1 in loss"),
        (lambda: KlConfiguration("k1", "reward", reward_kl_of="me"), "'policy' or 'rollout'"),
    ],
)
def test_bad_input_is_a_sentence(build: Any, words: str) -> None:
    with pytest.raises(LaboratoryError, match=words):
        build()


def test_a_rollout_policy_far_away_is_refused_not_returned_as_infinity() -> None:
    setting = LabSetting(ToyPolicy(5, 0), ToyPolicy(0, 0), 64, ToyPolicy(-5, 0))
    assert np.isfinite(exact(setting, [KlConfiguration("k1", "reward", ratio="none")]).mean).all()
    with pytest.raises(LaboratoryError, match=r"rho_k3\.loss@sequence is not finite"):
        exact(
            LabSetting(ToyPolicy(40, 0), ToyPolicy(0, 0), 64, ToyPolicy(-40, 0)),
            [KlConfiguration("k1", "loss"), KlConfiguration("rho_k3", "loss", ratio="sequence")],
        )
