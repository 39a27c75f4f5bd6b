"""The exact laboratory: clamps against autograd, long sequences, refusals, and Fig. 1 as data."""

import json

import numpy as np
import pytest

from orchestrator.errors import LaboratoryError
from orchestrator.exact.figures import figure1
from orchestrator.exact.laboratory import (
    LabSetting,
    Sequences,
    ToyPolicy,
    exact,
    tables,
)
from orchestrator.exact.objectives import gradients
from orchestrator.kl.configuration import FIGURE_1, KlConfiguration, extended
from orchestrator.kl.estimators import Clamp
from orchestrator.kl.shares import wilson
from orchestrator.settings import Placement


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
    ("estimator", "placement"), [("k1", "reward_and_loss"), ("rho_k1", "reward"), ("rb", "reward")]
)
def test_a_ratio_of_the_sequence_has_its_places(estimator: str, placement: Placement) -> None:
    with pytest.raises(LaboratoryError, match="use ratio 'token'"):
        KlConfiguration(estimator, placement, ratio="sequence")


def test_a_rollout_policy_far_away_is_refused_not_returned_as_infinity() -> None:
    setting = LabSetting(ToyPolicy(5, 0), ToyPolicy(0, 0), 64, ToyPolicy(-5, 0))
    assert np.isfinite(exact(setting, [KlConfiguration("k1", "reward", ratio="none")]).mean).all()
    with pytest.raises(LaboratoryError, match=r"rho_k3\.loss@sequence is not finite"):
        exact(
            LabSetting(ToyPolicy(40, 0), ToyPolicy(0, 0), 64, ToyPolicy(-40, 0)),
            [KlConfiguration("k1", "loss"), KlConfiguration("rho_k3", "loss", ratio="sequence")],
        )


DATA = figure1()


def test_the_data_is_plain_and_says_what_is_not_known() -> None:
    assert json.loads(json.dumps(DATA)) == DATA
    assert "does not state the parameters" in DATA["caveat"]
    assert [row["label"] for row in DATA["configurations"]] == [c.label for c in extended()]
    assert sum(row["in_paper"] for row in DATA["configurations"]) == 4


def test_at_the_default_parameters_the_papers_sentences_hold() -> None:
    """Only k1 in the reward is unbiased; k3 there has the highest bias; k1 in the loss the lowest
    variance, and a high bias."""
    rows = {row["label"]: row for row in DATA["configurations"] if row["in_paper"]}
    for parameter in "ab":
        bias = {label: row[parameter]["bias"] for label, row in rows.items()}
        variance = {label: row[parameter]["variance"] for label, row in rows.items()}
        assert [label for label, value in bias.items() if value == 0] == ["k1.reward"]
        assert max(bias, key=lambda label: bias[label]) == "k3.reward"
        assert min(variance, key=lambda label: variance[label]) == "k1.loss"
        assert bias["k1.loss"] == pytest.approx(abs(DATA["truth"][parameter]), rel=1e-9)


def test_the_orderings_of_figure_1_are_no_theorem() -> None:
    """docs/the_paper.md: that k3 in the reward has the largest bias holds for half of them."""
    spread = np.array([1.5, 0.15, 1.5, 0.15])
    held = []
    for p in np.random.default_rng(3).uniform(-spread, spread, (100, 4)).tolist():
        setting = LabSetting(ToyPolicy(*p[:2]), ToyPolicy(*p[2:]), 32)
        statistics = exact(setting, FIGURE_1)  # k1 in reward, k1 in loss, k3 in reward, ...
        bias = np.abs(statistics.mean - gradients(setting)["sequence_reverse_kl"])
        unbiased = (bias[0] <= 1e-9 * statistics.magnitude[0]).all()
        highest, lowest = bias.argmax(0) == 2, statistics.variance.argmin(0) == 1
        held.append((unbiased, highest.all(), lowest.all()))
    unbiased, highest, lowest = np.mean(held, axis=0)
    assert unbiased == 1
    assert 0.3 < highest < 0.7
    assert 0.15 < lowest < 0.6


def test_wilsons_interval() -> None:
    """10 of 20: 0.299 to 0.701 (Wilson 1927, tabulated)."""
    assert wilson(0, 0) == (0, 1)
    assert wilson(10, 20) == pytest.approx((0.2993, 0.7007), abs=1e-4)
