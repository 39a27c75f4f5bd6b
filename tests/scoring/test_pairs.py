"""Answers in the styles models produce, each with the score a person would give."""

from pathlib import Path

import pytest
import yaml

from orchestrator.scoring import math_answers

PAIRS = yaml.safe_load((Path(__file__).with_name("pairs.yaml")).read_text(encoding="utf-8"))
KNOWN = [(style, *row) for style, rows in PAIRS.items() if style != "misses" for row in rows]


@pytest.mark.parametrize(("style", "answer", "boxed", "expected"), KNOWN)
def test_as_a_person_would(style: str, answer: str, boxed: str, expected: int) -> None:
    response = f"Therefore the answer is \\boxed{{{boxed}}}, as was to be shown."
    assert math_answers.score(response, answer) == expected
    assert math_answers.reward(response, answer) == expected


@pytest.mark.parametrize(("answer", "boxed", "person", "scorer"), PAIRS["misses"])
def test_known_misses(answer: str, boxed: str, person: int, scorer: int) -> None:
    """They are listed so that nobody is surprised; one that is mended must leave the list."""
    assert person != scorer
    assert math_answers.score(f"\\boxed{{{boxed}}}", answer) == scorer


ADVERSARIAL = yaml.safe_load(
    (Path(__file__).with_name("adversarial.yaml")).read_text(encoding="utf-8")
)


@pytest.mark.parametrize("reason", ADVERSARIAL)
def test_adversarial_pairs_by_their_reason(reason: str) -> None:
    wrong = [
        (gold, given)
        for gold, given, equal in ADVERSARIAL[reason]
        if math_answers.reward(f"\\boxed{{{given}}}", gold) != equal
    ]
    assert not wrong


@pytest.mark.parametrize("answer", sorted({answer for _, answer, _, _ in KNOWN}))
def test_an_answer_equals_itself(answer: str) -> None:
    assert math_answers.score(f"\\boxed{{{answer}}}", answer) == 1
    assert math_answers.score(f"\\boxed{{ {answer} }}.", answer) == 1
