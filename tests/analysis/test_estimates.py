"""Intervals and tests, against scipy.stats, known values and their own definitions."""

import numpy as np
import pytest
import scipy  # its parts are imported when they are named: not by every process
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.analysis.stats import (
    ALPHA,
    estimate,
    holm,
    one_sided_p,
    rate,
    seeds_to_decide,
)

values = st.lists(st.floats(-100, 100).map(lambda x: round(x, 3)), min_size=2, max_size=12)
counts = st.tuples(st.integers(0, 30), st.integers(1, 30)).map(lambda t: (min(t), t[1]))


@given(values)
def test_the_interval_of_a_mean_is_students(x: list[float]) -> None:
    found = estimate(x)
    assert found.low is not None
    assert found.high is not None
    if len(set(x)) == 1:
        assert (found.low, found.high) == pytest.approx((x[0], x[0]))
        return
    low, high = scipy.stats.t.interval(0.95, len(x) - 1, np.mean(x), scipy.stats.sem(x))
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-8, abs=1e-8)


def test_one_seed_has_no_interval_and_none_has_no_mean() -> None:
    assert (estimate([0.5]).low, estimate([0.5]).high, estimate([0.5]).half_width) == (None,) * 3
    with pytest.raises(ValueError, match="at least one"):
        estimate([])


def test_an_interval_is_cut_to_what_an_accuracy_can_be() -> None:
    found = estimate([0.0, 0.9, 0.9]).within(0.0, 1.0)
    assert (found.low, found.high) == (0.0, 1.0)
    assert found.mean == pytest.approx(0.6)


@given(counts)
def test_the_interval_of_a_share_is_clopper_pearsons(pair: tuple[int, int]) -> None:
    count, n = pair
    expected = scipy.stats.binomtest(count, n).proportion_ci(0.95, "exact")
    assert (rate(count, n).low, rate(count, n).high) == pytest.approx(
        (expected.low, expected.high), abs=1e-9
    )


@given(values, st.floats(-100, 100))
def test_tails_are_the_t_test(x: list[float], bound: float) -> None:
    above, below = one_sided_p(estimate(x), bound)
    if np.std(x) > 1e-6 and abs(np.mean(x) - bound) > 1e-6:
        expected = scipy.stats.ttest_1samp(x, bound, alternative="greater").pvalue
        assert above == pytest.approx(expected, rel=1e-6, abs=1e-12)
        assert below == pytest.approx(1 - expected, rel=1e-6, abs=1e-12)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


def test_seeds_needed_have_the_power_they_promise() -> None:
    n = seeds_to_decide(0.05, 0.06, ALPHA)
    assert n is not None
    rng = np.random.default_rng(3)

    def power(seeds: int) -> float:
        x = rng.normal(0.05, 0.06, (4000, seeds))
        return float(np.mean(scipy.stats.ttest_1samp(x, 0, axis=1).pvalue < 0.05))

    assert power(n) > 0.77
    assert power(n - 2) < 0.80
