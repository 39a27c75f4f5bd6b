"""Intervals over seeds and items: coverage on simulated data, and their limits."""

import math

import numpy as np
import pytest

from orchestrator.analysis.stats import estimate, estimate_over_items

SPREADS = ((0.02, 0.3, 0.2), (0.05, 0.3, 0.2), (0.02, 0.05, 0.2), (0.1, 0.1, 0.1))
"""Standard deviations of seeds, items, and of what they do together."""


@pytest.mark.parametrize("seeds", [3, 5])
def test_the_interval_covers_the_truth_at_its_rate(seeds: int) -> None:
    """93 to 97 %, over the mixtures of spreads, within the error of 600 repetitions (0.9 %)."""
    rng = np.random.default_rng(seeds)
    covered, repetitions = 0, 600
    for turn in range(repetitions):
        of_seed, of_item, of_both = SPREADS[turn % len(SPREADS)]
        table = (
            rng.normal(0, of_seed, (seeds, 1))
            + rng.normal(0, of_item, (1, 120))
            + rng.normal(0, of_both, (seeds, 120))
        )
        found = estimate_over_items([table])
        assert found.low is not None
        assert found.high is not None
        covered += found.low < 0 < found.high
    assert 0.93 - 0.01 < covered / repetitions < 0.97 + 0.01


def test_it_covers_with_right_and_wrong_answers_too() -> None:
    rng = np.random.default_rng(7)
    chance = 1 / (1 + np.exp(-rng.normal(0.3, 2, 200_000)))
    truth, covered, repetitions = float(chance.mean()), 0, 400
    for _ in range(repetitions):
        p = 1 / (1 + np.exp(-(rng.normal(0.3, 2, (1, 200)) + rng.normal(0, 0.1, (3, 1)))))
        found = estimate_over_items([rng.binomial(8, p) / 8])
        covered += (found.low or 0.0) < truth < (found.high or 1.0)
    assert 0.92 < covered / repetitions < 0.98


def test_without_spread_between_items_it_is_students() -> None:
    """Items that move together say nothing that seeds do not."""
    by_seed = [0.5, 0.6, 0.73]
    found, plain = (
        estimate_over_items([np.repeat([[x] for x in by_seed], 40, axis=1)]),
        estimate(by_seed),
    )
    assert (found.mean, found.sd) == pytest.approx((plain.mean, plain.sd))
    assert found.half_width == pytest.approx(plain.half_width, rel=0.02)


def test_it_is_wider_than_over_seeds_alone_where_items_differ() -> None:
    rng = np.random.default_rng(0)
    table = rng.random((1, 100)) + rng.normal(0, 0.01, (4, 100))
    alone = estimate(table.mean(axis=1)).half_width
    both = estimate_over_items([table]).half_width
    assert alone is not None
    assert both is not None
    assert both > 5 * alone


def test_tasks_weigh_the_same_whatever_their_size() -> None:
    small, large = np.full((2, 3), 1.0), np.full((2, 300), 0.0)
    assert estimate_over_items([small, large]).mean == pytest.approx(0.5)


def test_the_same_tables_give_the_same_interval() -> None:
    table = np.random.default_rng(1).random((3, 50))
    assert estimate_over_items([table]) == estimate_over_items([table])


def test_one_seed_has_no_interval_and_nonsense_is_refused() -> None:
    assert estimate_over_items([[[0.0, 1.0]]]).low is None
    for tables in ([], [np.ones((0, 3))], [np.ones((2, 3)), np.ones((3, 3))], [np.ones(3)]):
        with pytest.raises(ValueError, match="same seeds"):
            estimate_over_items(tables)
    with pytest.raises(ValueError, match="no number"):
        estimate_over_items([[[0.1, math.nan], [0.2, 0.3]]])
