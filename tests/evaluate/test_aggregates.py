"""Means over the tasks of a domain."""

import pytest

from orchestrator.evaluate import aggregate
from orchestrator.records import Score


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
