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


def test_without_spread_between_items_it_is_students() -> None:
    """Items that move together say nothing that seeds do not."""
    by_seed = [0.5, 0.6, 0.73]
    found, plain = (
        estimate_over_items([np.repeat([[x] for x in by_seed], 40, axis=1)]),
        estimate(by_seed),
    )
    assert (found.mean, found.sd) == pytest.approx((plain.mean, plain.sd))
    assert found.half_width == pytest.approx(plain.half_width, rel=0.02)


def test_one_seed_has_no_interval_and_nonsense_is_refused() -> None:
    assert estimate_over_items([[[0.0, 1.0]]]).low is None
    for tables in ([], [np.ones((0, 3))], [np.ones((2, 3)), np.ones((3, 3))], [np.ones(3)]):
        with pytest.raises(ValueError, match="same seeds"):
            estimate_over_items(tables)
    with pytest.raises(ValueError, match="no number"):
        estimate_over_items([[[0.1, math.nan], [0.2, 0.3]]])
