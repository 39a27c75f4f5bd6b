"""Spaces and objectives as a person writes them."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.search.block import (
    SIGNIFICANT_DIGITS,
    distributions,
    parse_dimension,
    parse_objective,
)


@pytest.mark.parametrize(
    "written", ["log(0.001, 1)", " log( 1e-3 ,1.0 )", {"low": 0.001, "high": 1, "log": True}]
)
def test_one_range_has_several_spellings(written: object) -> None:
    found = parse_dimension("kl.beta", written)
    assert (found.low, found.high, found.log, found.is_range) == (0.001, 1.0, True, True)
    assert parse_dimension("beta", written) == found  # by its label


def test_the_type_of_a_range_is_the_field_s() -> None:
    whole = parse_dimension("batch.num_minibatches", "uniform(1, 4)")
    assert whole.is_integer
    assert type(whole.value(3)) is int
    (taken,) = distributions([whole]).values()
    assert type(taken).__name__ == "IntDistribution"


def test_alternatives_may_be_anything_an_axis_takes() -> None:
    found = parse_dimension("loss.clip", [None, {"low": 0.2, "high": 0.28}])
    assert list(found.choices or ()) == ["none", "low0.2-high0.28"]
    assert found.value("low0.2-high0.28") == {"low": 0.2, "high": 0.28}
    assert found.param({"low": 0.2, "high": 0.28}) == "low0.2-high0.28"


@pytest.mark.parametrize(
    ("field", "written", "told"),
    [
        ("kl.beta", "log(1, 0.1)", "inverted"),
        ("kl.beta", "log(1, 1)", "is empty"),
        ("kl.beta", "log(0, 1)", "a logarithmic scale has no 0"),
        ("kl.beta", "log(0.1, inf)", "finite"),
        ("kl.beta", "log(0.1)", "log(low, high)"),
        ("kl.beta", [], "is empty"),
        ("kl.beta", [0.1, 0.1], "twice"),
        ("kl.beta", {"low": 1}, "needs low and high"),
        ("kl.beta", {"lo": 1, "high": 2}, "did you mean 'low'"),
        ("kl.beta", {"low": 1, "high": 2, "log": "yes"}, "true or false"),
        ("kl.beta", True, "log(low, high)"),
        ("kl.bta", "log(0.1, 1)", "did you mean 'kl.beta'"),
        ("kl.estimator", "log(0.1, 1)", "is no number"),
        ("batch.num_prompts", "uniform(0.5, 2)", "whole numbers"),
        ("seed", [0, 1], "tune.seeds"),
    ],
)
def test_what_is_wrong_with_a_space_is_a_sentence(field: str, written: object, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        parse_dimension(field, written)


@given(st.floats(0.001, 3.0))
def test_a_proposal_is_rounded_once_and_stays_inside(proposed: float) -> None:
    found = parse_dimension("kl.beta", "log(0.001, 3)")
    value = found.value(proposed)
    assert found.low <= value <= found.high
    assert math.isclose(value, proposed, rel_tol=0.51 * 10 ** (1 - SIGNIFICANT_DIGITS))
    assert found.value(value) == value


def test_an_objective_is_a_weighted_sum() -> None:
    found = parse_objective("eval/accuracy_in_domain - 0.5 * eval/kl_reverse + 2e-1*train/entropy")
    values = {"eval/accuracy_in_domain": 0.9, "eval/kl_reverse": 0.4, "train/entropy": 1.0}
    assert found.value(values) == pytest.approx(0.9 - 0.2 + 0.2)
    assert math.isnan(found.value({"eval/kl_reverse": 0.4}))
    assert found.missing({"eval/kl_reverse": 0.4}) == ["eval/accuracy_in_domain", "train/entropy"]
    assert parse_objective("- eval/kl_reverse").value(values) == -0.4
    assert parse_objective("eval/math-500/mean@32").is_scored
    assert not found.is_scored


@pytest.mark.parametrize(
    "text", ["", "accuracy", "eval/a * eval/b", "eval/a -0.5 * eval/b", "- ", "eval/a; import os"]
)
def test_a_formula_that_cannot_be_read_is_quoted(text: str) -> None:
    with pytest.raises(ValueError, match="objective"):
        parse_objective(text)
