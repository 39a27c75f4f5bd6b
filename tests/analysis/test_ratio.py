"""Relative improvement: Fieller's interval and the paper's mean of ratios."""

import math

import numpy as np
import pytest
from hypothesis import strategies as st

from orchestrator.analysis.stats import mean_relative_improvement, relative_improvement

shares = st.floats(0.05, 1).map(lambda x: round(x, 4))


def seeds(values: list[float]) -> dict[int, float]:
    return dict(enumerate(values))


def test_fiellers_interval_covers_the_ratio_at_its_rate() -> None:
    rng, covered, repetitions = np.random.default_rng(3), 0, 3000
    for _ in range(repetitions):
        common = rng.normal(0, 0.03, 3)
        found = relative_improvement(
            seeds(list(0.6 + common + rng.normal(0, 0.02, 3))),
            seeds(list(0.5 + common + rng.normal(0, 0.02, 3))),
        )
        assert found is not None
        covered += found.low is None or found.low < 0.2 < (found.high or math.inf)
    assert 0.935 < covered / repetitions < 0.965


def test_the_papers_average_is_a_mean_of_ratios() -> None:
    """§4.1 averages the relative improvement of each task, not the accuracies."""
    physics = seeds([0.6, 0.6]), seeds([0.5, 0.5])
    biology = seeds([0.9, 0.9]), seeds([0.6, 0.6])
    found = mean_relative_improvement([physics, biology])
    assert found is not None
    assert found.value == pytest.approx((0.2 + 0.5) / 2)
    assert (found.low, found.high) == pytest.approx((0.35, 0.35))


def test_what_has_no_ratio_is_not_told() -> None:
    assert relative_improvement({0: 0.5}, {1: 0.5}) is None
    assert relative_improvement(seeds([0.5, 0.6]), seeds([0.0, 0.0])) is None
    assert mean_relative_improvement([]) is None
    assert mean_relative_improvement([(seeds([1.0]), seeds([0.5])), (seeds([1.0]), {})]) is None
    single = relative_improvement({0: 0.6}, {0: 0.5})
    assert single is not None
    assert (single.value, single.low) == (pytest.approx(0.2), None)
    unsure = relative_improvement(seeds([0.5, 0.4]), seeds([0.9, 0.01]))
    assert unsure is not None
    assert unsure.low is None, "right is not told from 0, so the ratio could be anything"


def test_nothing_is_relative_to_a_collapsed_run() -> None:
    fine, collapsed = seeds([0.8, 0.7]), seeds([1e-12, 3e-12])
    assert relative_improvement(fine, collapsed) is None
    assert mean_relative_improvement([(fine, seeds([0.5, 0.4])), (fine, collapsed)]) is None
    assert relative_improvement(collapsed, fine) is not None
