"""Countdown: reasoning-gym's score, and reasoning-gym itself where it is installed."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.scoring import countdown

NUMBERS, TARGET = [25, 5, 3, 1], 61


@pytest.mark.parametrize(
    ("response", "score"),
    [
        ("<answer>(25 - 5) * 3 + 1</answer>", 1.0),
        ("<answer>99</answer> or <answer> 3*(25-5)+1 </answer><|im_end|>", 1.0),
        ("<answer> <answer>3*(25-5)+1</answer>", 1.0),
        (r"\boxed{3 \times (25-5)+1}", 1.0),
        ("3*(25-5)+1", 1.0),
        ("<answer>-(5-25)*3 + 1</answer>", 1.0),
        ("<answer>25 + 5 + 3 + 1</answer>", 0.05),
        ("<answer>61</answer>", 0.05),
        ("61", 0.05),
        ("<answer>(25-5)*3+1+3-3</answer>", 0.05),
        ("<answer>3*(25-5)+1 = 61</answer>", 0.01),
        ("<answer>61 / 0</answer>", 0.01),
        ("<answer>25 ** 5 ** 9</answer>", 0.01),
        ("<answer>25.0 + 1</answer>", 0.01),
        ("<answer>True + 1</answer>", 0.01),
        ("<answer>__import__('os')</answer>", 0.01),
        ("<answer></answer>", 0.01),
        ("<answer>" + "(" * 199 + "</answer>", 0.01),
        ("<answer>" + "-" * 198 + "1</answer>", 0.05),
        ("<answer>" + "9" * 200 + "</answer>", 0.05),
        ("<answer>" * 20_000, 0.01),
        ("I think it is 3*(25-5)+1", 0.01),
        ("x" * 100_000 + "<answer>3*(25-5)+1</answer>", 1.0),
        ("", 0.01),
    ],
)
def test_scores(response: str, score: float) -> None:
    assert countdown.score(response, NUMBERS, TARGET) == score
    label = json.dumps({"numbers": NUMBERS, "target": TARGET})
    assert countdown.reward(response, label) == score


def test_division_is_exact() -> None:
    assert countdown.score("<answer>8/3*3</answer>", [8, 3, 3], 8) == 1.0
    assert countdown.score("<answer>100/3</answer>", [100, 3], 33) == 0.05
    assert countdown.score("<answer>100000/100001</answer>", [100000, 100001], 1) == 1.0, "isclose"


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("1/0", 0.01),
        ("0/0", 0.05),
        ("1/(1/0)", 0.05),
        ("1/0-1/0", 0.05),
        ("1/0+2", 0.01),
        ("0*(1/0)", 0.05),
        ("2*(1/0)", 0.01),
        ("-(1/0)", 0.01),
        ("(1/0)/(1/0)", 0.05),
        ("0/0+1", 0.05),
        ("(1/0)/0", 0.01),
        ("(1/0)*(1/0)", 0.01),
    ],
)
def test_division_by_zero_is_sympys(text: str, score: float) -> None:
    assert countdown.score(f"<answer>{text}</answer>", [1, 2], 9) == score
    gym = pytest.importorskip("reasoning_gym.games.countdown", reason="the extra `data`")
    scorer = gym.CountdownDataset(gym.CountdownConfig(size=1, seed=0))
    entry = {"metadata": {"numbers": [1, 2], "target": 9}}
    assert scorer.score_answer(text, entry) == score


expressions = st.recursive(
    st.integers(0, 20).map(str),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda x: f"({''.join(x)})"),
    max_leaves=5,
)


@given(expressions, st.integers(-5, 60))
@settings(max_examples=60, deadline=None)
def test_reasoning_gym_says_the_same(text: str, target: int) -> None:
    gym = pytest.importorskip("reasoning_gym.games.countdown", reason="the extra `data`")
    scorer = gym.CountdownDataset(gym.CountdownConfig(size=1, seed=0))
    numbers = [int(x) for x in "".join(c if c.isdigit() else " " for c in text).split()]
    for used in (numbers, numbers[1:]):
        entry = {"metadata": {"numbers": used, "target": target}}
        theirs = scorer.score_answer(text, entry)
        assert countdown.score(f"<answer>{text}</answer>", used, target) == theirs
