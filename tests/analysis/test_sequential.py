"""Verdicts that hold however often one looks: the promise, by simulation, and the words for it."""

import math
from typing import Any

import numpy as np
import pytest

from benchmarks.sequential import seeds_needed
from orchestrator.analysis.claims import reason, statement
from orchestrator.analysis.compare import compare
from orchestrator.analysis.stats import (
    ALPHA,
    Estimate,
    Rate,
    anytime_interval,
    anytime_p,
    anytime_p_between,
    anytime_p_of_share,
    estimate,
    log_evidence,
    seeds_to_decide,
    t_quantile,
    t_reach,
)
from orchestrator.spec.claims import parse

REPETITIONS, MOST = 4000, 40
ERROR = 3 * math.sqrt(ALPHA * (1 - ALPHA) / REPETITIONS)


@pytest.fixture(scope="module")
def null() -> np.ndarray:
    """t statistics of the first n of 40 differences without an effect, [repetitions, n from 2]."""
    x = np.random.default_rng(7).normal(size=(REPETITIONS, MOST))
    n = np.arange(1, MOST + 1)
    mean = x.cumsum(axis=1) / n
    variance = ((x**2).cumsum(axis=1) - n * mean**2)[:, 1:] / (n[1:] - 1)
    return np.asarray(mean[:, 1:] / np.sqrt(variance / n[1:]))


def rejections(t: np.ndarray, once: bool) -> float:
    """Return the share of experiments that are ever decided, looked at after every seed."""
    reach = [
        t_quantile(1 - ALPHA / 2, n - 1) if once else t_reach(n, ALPHA) or math.inf
        for n in range(2, MOST + 1)
    ]
    return float((np.abs(t) >= np.array(reach)).any(axis=1).mean())


def test_false_claims_stay_nominal_at_every_look(null: np.ndarray) -> None:
    """Student's t at every look claims falsely far too often; it judged claims before."""
    assert rejections(null, once=True) > 4 * ALPHA
    assert rejections(null, once=False) <= ALPHA + ERROR


@pytest.mark.slow
def test_an_extension_by_as_many_seeds_as_were_named_stays_nominal(null: np.ndarray) -> None:
    """Three seeds, then as many as the verdict names: 11.6 % of true nothings were claimed."""
    once, every = (
        [math.inf, math.inf, *(level(n) or math.inf for n in range(2, MOST + 1))]
        for level in (lambda n: t_quantile(1 - ALPHA / 2, n - 1), lambda n: t_reach(n, ALPHA))
    )
    claims = {"once": 0, "every": 0}
    for row in np.abs(null):
        named = seeds_needed(row[1] / math.sqrt(3), 1.0) or MOST
        looks = 3, min(MOST, max(4, named))
        for rule, level in (("once", once), ("every", every)):
            claims[rule] += any(row[n - 2] >= level[n] for n in looks)
    assert claims["once"] / REPETITIONS > 0.08
    assert claims["every"] / REPETITIONS <= ALPHA + ERROR


def test_the_interval_holds_at_all_numbers_of_seeds_at_once(null: np.ndarray) -> None:
    reach = np.array([t_reach(n, ALPHA) or math.inf for n in range(2, MOST + 1)])
    assert (np.abs(null) < reach).all(axis=1).mean() >= 1 - ALPHA - ERROR


def test_evidence_is_the_marginal_likelihood_ratio() -> None:
    """Held to numerical integration over the effect and the spread, for one prior each."""
    from scipy.integrate import dblquad

    x = np.array([0.3, 1.1, 0.7])
    t = x.mean() / (x.std(ddof=1) / math.sqrt(3))

    def marginal(variance: float | None) -> float:
        def density(delta: float, log_sigma: float) -> float:
            sigma = math.exp(log_sigma)
            mean = 0.0 if variance is None else delta * sigma
            prior = 1.0 if variance is None else math.exp(-(delta**2) / (2 * variance))
            prior /= 1.0 if variance is None else math.sqrt(2 * math.pi * variance)
            square = float(((x - mean) ** 2).sum())
            return prior * math.exp(-square / (2 * sigma**2)) / sigma**3

        if variance is None:
            from scipy.integrate import quad

            return float(quad(lambda s: density(0.0, s), -8, 8)[0])
        reach = 8 * math.sqrt(variance)
        return float(dblquad(density, -8, 8, -reach, reach, epsabs=1e-10)[0])

    from orchestrator.analysis import stats

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stats, "PRIOR_VARIANCES", (1.0,))
        expected = marginal(1.0) / marginal(None)
        assert math.exp(log_evidence(t, 3)) == pytest.approx(expected, rel=1e-3)


def test_p_and_interval_agree() -> None:
    effect = estimate([0.02, 0.05, 0.03, 0.06, 0.04])
    for alpha in (0.2, 0.05, 0.01):
        interval = anytime_interval(effect, alpha)
        assert interval is not None
        for bound in interval:
            assert 2 * min(anytime_p(effect, bound)) == pytest.approx(alpha, rel=1e-6)
    low, high = anytime_interval(effect, ALPHA) or (0.0, 0.0)
    assert effect.low is not None
    assert low < effect.low
    assert effect.high is not None
    assert high > effect.high
    assert anytime_interval(estimate([0.1, 0.2]), ALPHA) is None, "two seeds never decide"
    assert anytime_p(estimate([0.1]), 0.0) == (0.5, 0.5)
    assert anytime_p(estimate([0.1] * 6), 0.0)[0] == 0.5**6, "the sign test"
    above, below = anytime_p(effect, 1.0)
    assert above > 0.9 > 0.1 > below


@pytest.mark.parametrize("chance", [0.1, 0.5])
def test_shares_are_told_apart_falsely_no_oftener_than_nominal(chance: float) -> None:
    rng, repetitions = np.random.default_rng(3), 400
    apart = off = 0
    for _ in range(repetitions):
        left, right = (rng.random((2, 20)) < chance).cumsum(axis=1)
        rates = [
            (Rate(int(a), n, 0, 1), Rate(int(b), n, 0, 1))
            for n, (a, b) in enumerate(zip(left, right, strict=True), 1)
        ]
        apart += any(2 * min(anytime_p_between(*pair)) < ALPHA for pair in rates)
        off += any(2 * min(anytime_p_of_share(one, chance)) < ALPHA for one, _ in rates)
    assert max(apart, off) / repetitions <= ALPHA + 3 * math.sqrt(ALPHA / repetitions)


def test_shares_that_differ_are_told_apart() -> None:
    all_, none = Rate(8, 8, 0, 1), Rate(0, 8, 0, 1)
    assert 2 * anytime_p_between(all_, none)[0] < 0.01
    assert anytime_p_between(all_, none)[1] == 1.0
    assert 2 * anytime_p_of_share(all_, 0.3)[0] < 0.01
    assert anytime_p_of_share(none, -0.1) == (0.0, 1.0)
    assert anytime_p_of_share(none, 1.1) == (1.0, 0.0)


def test_seeds_to_decide_have_the_power_they_promise() -> None:
    n = seeds_to_decide(1.0, 1.0, ALPHA)
    assert n is not None
    x = np.random.default_rng(5).normal(1.0, 1.0, size=(2000, n))
    t = x.mean(axis=1) / (x.std(axis=1, ddof=1) / math.sqrt(n))
    reach = t_reach(n, ALPHA)
    assert reach is not None
    assert (t >= reach).mean() == pytest.approx(0.8, abs=0.08)
    assert seeds_to_decide(1.0, 1.0, ALPHA) < seeds_to_decide(0.5, 1.0, ALPHA)  # type: ignore[operator]  # both are numbers
    assert seeds_to_decide(0.0, 1.0, ALPHA) is None
    assert seeds_to_decide(1e-4, 1.0, ALPHA) is None


HIGHER = "eval/in_domain/mean[kl=k1.reward] > eval/in_domain/mean[kl=k3.loss]"


def verdict(synthetic: Any, done: Any, text: str, items: Any = None) -> Any:
    (found,) = compare(synthetic.spec({"c": text}), done.records, done.scores, items).claims
    return found


def test_a_verdict_says_what_holds_at_every_look_and_for_whom(synthetic: Any) -> None:
    done = synthetic.grid({"k1.reward": [0.8, 0.7, 0.9], "k3.loss": [0.75, 0.8, 0.72]})
    found = verdict(synthetic, done, HIGHER)
    text = reason(found)
    assert found.verdict == "too few runs"
    assert "at every look [" in text
    assert "at every look, p = " in text
    assert "if this were the only look" in text
    assert "It speaks of all seeds on these evaluations." in text
    assert found.evidence.p > found.evidence.p_once


def test_a_claim_over_items_has_their_spread_as_well(synthetic: Any) -> None:
    """The interval over seeds alone covers the mean over the items' population 81 to 93 %."""
    one, other = [0.80, 0.81, 0.80, 0.81], [0.70, 0.71, 0.71, 0.70]
    done = synthetic.grid({"k1.reward": one, "k3.loss": other})
    rng = np.random.default_rng(0)
    hard = rng.random(40)
    hard -= hard.mean()
    left = {record.cell.id for record in done.records if "k1.reward" in record.cell.slug}
    items: dict[str, dict[str, Any]] = {}
    for score in done.scores:
        if score.metric.startswith("mean@"):
            sign = 0.8 if score.cell_id in left else -0.8
            items.setdefault(score.cell_id, {})[score.task] = score.value + sign * hard
    seeds = verdict(synthetic, done, HIGHER, items)
    both = verdict(synthetic, done, f"{HIGHER} over items", items)
    assert seeds.verdict == "holds"
    assert "items, not of other items" in reason(seeds)
    assert both.evidence.effect.mean == pytest.approx(seeds.evidence.effect.mean)
    assert both.evidence.effect.sd > 3 * seeds.evidence.effect.sd
    assert both.verdict == "too few runs"
    assert "the tasks that the items were drawn from" in reason(both)
    assert "over the population of items" in statement(both.claim)
    unknown = verdict(synthetic, done, f"{HIGHER} over items")
    assert unknown.verdict == "not testable"
    assert "scores of single items are not known" in reason(unknown)
    assert parse(f"{HIGHER} over items").over_items


def test_the_evidence_of_one_estimate_is_finite() -> None:
    assert log_evidence(1e8, 1000) > 1000
    assert log_evidence(0.0, 2) < 0
    assert anytime_p(Estimate(0.1, 3, 1e-9), 0.0)[0] < 1e-3
