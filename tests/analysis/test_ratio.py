"""Relative improvement: Fieller's interval and the paper's mean of ratios."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.analysis.stats import mean_relative_improvement, relative_improvement

shares = st.floats(0.05, 1).map(lambda x: round(x, 4))


def seeds(values: list[float]) -> dict[int, float]:
    return dict(enumerate(values))


@given(st.lists(st.tuples(shares, shares), min_size=2, max_size=8), st.floats(0.1, 10))
def test_it_does_not_depend_on_the_unit(pairs: list[tuple[float, float]], unit: float) -> None:
    x, y = ([p[i] for p in pairs] for i in (0, 1))
    plain = relative_improvement(seeds(x), seeds(y))
    scaled = relative_improvement(seeds([unit * v for v in x]), seeds([unit * v for v in y]))
    assert plain is not None
    assert scaled is not None
    assert scaled.value == pytest.approx(plain.value, rel=1e-6, abs=1e-9)
    assert (scaled.low is None) == (plain.low is None) or plain.n == 2
    if plain.low is not None and plain.high is not None:
        assert plain.low - 1e-9 <= plain.value <= plain.high + 1e-9


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


def test_for_one_task_it_is_near_fiellers() -> None:
    pair = seeds([0.61, 0.58, 0.63, 0.6]), seeds([0.5, 0.49, 0.52, 0.5])
    one, mean = relative_improvement(*pair), mean_relative_improvement([pair])
    assert one is not None
    assert mean is not None
    assert mean.value == one.value
    assert (mean.low, mean.high) == pytest.approx((one.low, one.high), rel=0.05)


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
