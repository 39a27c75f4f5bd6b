"""Collapse on constructed curves."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.micro.collapse import WINDOW, Moment, diverged, judge


def trace(*parts: tuple[int, float, float, float]) -> list[Moment]:
    """(train steps, reward, response tokens, entropy), one part after the other."""
    return [Moment(*values) for count, *values in parts for _ in range(count)]


def test_a_reward_that_is_kept_or_merely_dips_is_no_collapse() -> None:
    assert judge(trace((60, 0.3, 6, 0.3), (40, 0.9, 6, 0.1)), 7).kind == "trained"
    assert judge(trace((60, 0.9, 6, 0.3), (40, 0.3, 6, 0.1)), 7).kind == "trained"
    recovered = trace((30, 0.8, 6, 0.3), (30, 0.0, 6, 0.3), (30, 0.8, 6, 0.3))
    assert judge(recovered, 7).kind == "trained"


def test_a_policy_that_never_had_a_reward_did_not_lose_it() -> None:
    assert judge(trace((50, 0.05, 6, 0.3), (50, 0.0, 6, 0.3)), 7).kind == "trained"


@pytest.mark.parametrize(
    ("end", "cause"),
    [((6.0, 0.3), "reward"), ((7.0, 0.3), "length"), ((6.0, 0.001), "entropy")],
)
def test_a_lost_reward_is_a_collapse_with_its_cause(end: tuple[float, float], cause: str) -> None:
    outcome = judge(trace((50, 0.8, 6, 0.3), (50, 0.0, *end)), 7)
    assert (outcome.kind, outcome.cause) == ("collapsed", cause)
    assert outcome.step == 50 + 8  # eight of ten steps lost: a mean of 0.16, a fifth of 0.8
    assert "fell from 0.800 to 0.000" in outcome.detail


def test_always_filling_the_limit_is_not_what_changed() -> None:
    assert judge(trace((50, 0.8, 7, 0.3), (50, 0.0, 7, 0.3)), 7).cause == "reward"


def test_numbers_that_stop_being_numbers_are_an_outcome() -> None:
    outcome = diverged(12, "the loss or its gradient")
    assert (outcome.kind, outcome.cause, outcome.step) == ("collapsed", "nan", 12)


@given(st.lists(st.floats(0, 1), max_size=80))
def test_every_curve_has_an_outcome_whose_step_lies_on_it(rewards: list[float]) -> None:
    outcome = judge([Moment(r, 6, 0.3) for r in rewards], 7)
    if outcome.kind == "collapsed":
        assert outcome.step is not None
        assert WINDOW < outcome.step <= len(rewards)
        assert math.isclose(sum(rewards[-WINDOW:]), 0, abs_tol=WINDOW * 0.2)
