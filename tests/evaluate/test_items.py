"""Metrics of the k responses to an item, and means over items."""

import itertools

import numpy as np
import pytest

from orchestrator.evaluate import items


@pytest.mark.parametrize(("count", "correct", "k"), [(5, 2, 1), (5, 2, 3), (6, 1, 4), (6, 6, 2)])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_one(
    count: int, correct: int, k: int
) -> None:
    responses = [1] * correct + [0] * (count - correct)
    subsets = [any(chosen) for chosen in itertools.combinations(responses, k)]
    assert items.pass_at(k, count, correct) == pytest.approx(sum(subsets) / len(subsets))


def test_the_metrics_of_one_item() -> None:
    told = items.metrics(["1", "2", "2", None], [1, 0, 0, 0])
    assert told["mean@k"] == 0.25
    assert items.mean([0, 1]).stderr == pytest.approx(0.5), "of a sample"
    assert told["pass@k"] == 1
    assert told["maj@k"] == 0
    assert told["distinct@k"] == 3
    assert told["pass@2"] == pytest.approx(0.5)
    assert set(items.metrics(["1"] * 32, [1] * 32)) == {
        "mean@k",
        "pass@k",
        "maj@k",
        "distinct@k",
        "pass@2",
        "pass@4",
        "pass@8",
        "pass@16",
    }


def test_a_ratio_has_the_error_that_resampling_gives() -> None:
    generator = np.random.default_rng(0)
    below = generator.integers(1, 20, 400).astype(float)
    above = below * 0.3 + generator.normal(0, 1, 400)
    told = items.ratio(list(above), list(below))
    rows = generator.integers(0, 400, (4000, 400))
    resampled = above[rows].sum(1) / below[rows].sum(1)
    assert told.value == pytest.approx(above.sum() / below.sum())
    assert told.stderr == pytest.approx(resampled.std(), rel=0.08)
