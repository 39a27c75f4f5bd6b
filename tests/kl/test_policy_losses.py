"""The effect of a policy loss, against a second computation: a walk over every response."""

from itertools import product
from math import exp, log, sqrt

import numpy as np
import pytest

from orchestrator.exact.laboratory import ToyPolicy
from orchestrator.exact.policy_losses import (
    STALENESS,
    counts,
    effect,
    policies,
    rows,
)
from orchestrator.losses.table import POLICY_LOSSES, Bounds

T = 10


def _chances(policy: ToyPolicy, response: tuple[int, ...]) -> list[float]:
    ones = [sum(response[:t]) for t in range(T)]
    rates = [1 / (1 + exp(-(policy.a + policy.b * count))) for count in ones]
    return [p if y else 1 - p for p, y in zip(rates, response, strict=True)]


def _weight(name: str, chances: list[tuple[float, float]], gained: float) -> list[float]:
    """Return the factor of A s_t of each token, written from the papers' formulas."""
    ratios = [new / old for new, old in chances]
    if name == "ppo":
        return [r * (r <= 1.2 if gained > 0 else r >= 0.8) for r in ratios]
    if name == "cispo":
        return [min(r, 5.0) for r in ratios]
    if name == "gspo":
        s = exp(sum(map(log, ratios)) / T)
        return [s * (s <= 1.0004 if gained > 0 else s >= 0.9997)] * T
    return [
        new / old * (new - old <= 0.2 if gained > 0 else old - new <= 0.2) for new, old in chances
    ]


@pytest.mark.parametrize("name", ["ppo", "cispo", "gspo", "dppo_tv"])
def test_the_expected_gradient_is_that_of_a_walk(name: str) -> None:
    who = policies(4.0)
    responses = list(product((0, 1), repeat=T))
    at = {
        each: tuple(_chances(each, response) for response in responses)
        for each in (who.policy, who.proximal)
    }
    new, old = at[who.policy], at[who.proximal]
    base = sum(float(np.prod(p)) for p, y in zip(new, responses, strict=True) if sum(y) > 5)
    mean, true = np.zeros(2), np.zeros(2)
    square = 0.0
    for i, response in enumerate(responses):
        gained = float(sum(response) > 5) - base
        factors = _weight(name, list(zip(new[i], old[i], strict=True)), gained)
        each = np.zeros(2)
        for t, y in enumerate(response):
            count = sum(response[:t])
            rate = new[i][t] if y else 1 - new[i][t]
            score = (y - rate) * np.array([1.0, count])
            each += gained * factors[t] * score
            true += np.prod(new[i]) * gained * score
        mean += np.prod(old[i]) * each
        square += float(np.prod(old[i]) * (each @ each))
    length = true @ true
    ours = effect(POLICY_LOSSES[name], who)
    assert ours.pull == pytest.approx(mean @ true / length, rel=1e-10)
    assert ours.off == pytest.approx(sqrt((mean - true) @ (mean - true) / length), rel=1e-10)
    assert ours.noise == pytest.approx(sqrt((square - mean @ mean) / length), rel=1e-10)


@pytest.mark.parametrize("name", list(POLICY_LOSSES))
def test_on_policy_no_loss_is_biased(name: str) -> None:
    at = effect(POLICY_LOSSES[name], policies(0.0))
    assert at.off == 0.0
    assert at.dropped_positive == at.dropped_negative == 0.0


def test_what_is_cut_from_the_reward_makes_beta_count_more() -> None:
    """GSPO at its paper's bounds drops most of the signal; a KL in the loss is whole."""
    stale = policies(1.0)
    tight, wide = (
        effect(POLICY_LOSSES["gspo"], stale),
        effect(POLICY_LOSSES["gspo"], stale, Bounds(0.2, 0.2)),
    )
    assert tight.dropped_positive > 0.5
    assert wide.dropped_positive == wide.dropped_negative == 0.0
    weights = [counts(POLICY_LOSSES[name], "k3", stale) for name in ("cispo", "gspo")]
    assert None not in weights
    assert weights == sorted(weights, key=lambda each: each or 0.0)


@pytest.mark.parametrize("name", list(POLICY_LOSSES))
def test_beta_weighs_against_a_gain_only(name: str) -> None:
    """`ipo+k3` said that β counts × -121, where the policy loss lowers the task reward."""
    for staleness in STALENESS:
        who = policies(staleness)
        factor = counts(POLICY_LOSSES[name], "k3", who)
        assert (factor is None) == (effect(POLICY_LOSSES[name], who).pull <= 0)
        assert factor is None or factor > 0
    told = [row[-1] for row in rows(POLICY_LOSSES[name], "k3")]
    assert not any(each.startswith("-") and "reward falls" not in each for each in told)


def test_gspo_at_the_clip_of_ppo_cuts_hardly_anything_and_not_nothing() -> None:
    at = [effect(POLICY_LOSSES["gspo"], policies(s), Bounds(0.2, 0.2)) for s in (1.0, 2.0, 4.0)]
    assert [max(e.dropped_positive, e.dropped_negative) > 0.1 for e in at] == [False, False, True]
    assert "hardly" in POLICY_LOSSES["gspo"].instead
