"""Relative improvement: the paper's mean of ratios."""

import numpy as np
import pytest

from orchestrator.analysis.stats import mean_relative_improvement


def seeds(values: list[float]) -> dict[int, float]:
    return dict(enumerate(values))


def test_its_interval_covers_the_ratio_at_its_rate() -> None:
    rng, covered, repetitions = np.random.default_rng(3), 0, 2000
    for _ in range(repetitions):
        common = rng.normal(0, 0.03, 3)
        left, right = (list(mean + common + rng.normal(0, 0.02, 3)) for mean in (0.6, 0.5))
        found = mean_relative_improvement([(seeds(left), seeds(right))])
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        covered += found.low < 0.2 < found.high
    assert 0.93 < covered / repetitions < 0.97


def test_the_papers_average_is_a_mean_of_ratios() -> None:
    """§4.1 averages the relative improvement of each task, not the accuracies."""
    physics = seeds([0.6, 0.6]), seeds([0.5, 0.5])
    biology = seeds([0.9, 0.9]), seeds([0.6, 0.6])
    found = mean_relative_improvement([physics, biology])
    assert found is not None
    assert found.value == pytest.approx((0.2 + 0.5) / 2)
    assert (found.low, found.high) == pytest.approx((0.35, 0.35))


def test_what_has_no_ratio_is_not_told() -> None:
    fine, collapsed = seeds([0.8, 0.7]), seeds([1e-12, 3e-12])
    for pairs in (
        [({0: 0.5}, {1: 0.5})],
        [(fine, seeds([0.0, 0.0]))],
        [(fine, seeds([0.5, 0.4])), (fine, {})],
        [(fine, seeds([0.5, 0.4])), (fine, collapsed)],
    ):
        assert mean_relative_improvement(pairs) is None
    assert mean_relative_improvement([(collapsed, fine)]) is not None
    single = mean_relative_improvement([({0: 0.6}, {0: 0.5})])
    assert single is not None
    assert (single.value, single.low) == (pytest.approx(0.2), None)
