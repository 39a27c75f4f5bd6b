"""Means over the tasks of a domain."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_its_version_follows_those_of_its_tasks() -> None:
    (one,) = aggregate([score("a", task_version="1"), score("b", task_version="1")])
    (turned,) = aggregate([score("b", task_version="1"), score("a", task_version="1")])
    (other,) = aggregate([score("a", task_version="1"), score("b", task_version="2")])
    assert one.task_version == turned.task_version != other.task_version


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(1e-6, 1)), min_size=1, max_size=8))
def test_the_mean_lies_within_and_is_no_less_certain_than_its_tasks(
    estimates: list[tuple[float, float]],
) -> None:
    scores = [score(f"t{i}", v, stderr=e) for i, (v, e) in enumerate(estimates)]
    (mean,) = aggregate(scores)
    values, errors = zip(*estimates, strict=True)
    assert min(values) - 1e-12 <= mean.value <= max(values) + 1e-12
    assert mean.stderr is not None
    assert mean.stderr <= max(errors) * (1 + 1e-12) / math.sqrt(len(errors))
