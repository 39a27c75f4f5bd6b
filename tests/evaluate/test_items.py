"""Metrics of the k responses to an item, means over items, and means over the tasks of a domain."""

import itertools

import numpy as np
import pytest

from orchestrator.evaluate import aggregate, items
from orchestrator.records import Score


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


def score(task: str, value: float = 0.5, **changes: object) -> Score:
    plain = {
        "cell_id": "1",
        "step": 100,
        "domain": "out",
        "metric": "mean@4",
        "stderr": 0.02,
        "num_items": 128,
        "repeats": 4,
        "task": task,
        "value": value,
        **changes,
    }
    return Score.model_validate(plain)


def test_each_task_weighs_the_same_and_errors_add_in_squares() -> None:
    (mean,) = aggregate(
        [score("a", 0.2, stderr=0.03, num_items=10), score("b", 0.6, stderr=0.04, num_items=90)]
    )
    assert mean.task == "out_of_domain"
    assert mean.value == pytest.approx(0.4)
    assert mean.stderr == pytest.approx(0.05 / 2)
    assert mean.num_items == 100


def test_domains_metrics_steps_seeds_and_cells_are_kept_apart() -> None:
    changes: list[dict[str, object]] = [
        {},
        {"domain": "in"},
        {"metric": "pass@4"},
        {"step": 1},
        {"eval_seed": 1},
        {"cell_id": "2"},
        {"sampling": {"min_p": 1.0}},
    ]
    means = aggregate([score("a", number, **change) for number, change in enumerate(changes)])
    assert [mean.value for mean in means] == list(range(len(changes)))
    assert [mean.task for mean in means].count("in_domain") == 1


def test_an_unknown_error_is_not_taken_for_none() -> None:
    (mean,) = aggregate([score("a"), score("b", stderr=None)])
    assert mean.stderr is None
