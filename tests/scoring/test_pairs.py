"""Answers in the styles models produce, each with the score a person would give."""

from pathlib import Path

import pytest
import yaml

from orchestrator.scoring import math_answers
from tests.scoring import generated

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
MISSED: set[tuple[str, str]] = set()
"""Adversarial pairs that the scorer has wrong: one that is mended must leave the list."""


@pytest.mark.parametrize("reason", ADVERSARIAL)
def test_adversarial_pairs_by_their_reason(reason: str) -> None:
    wrong = {
        (gold, given)
        for gold, given, equal in ADVERSARIAL[reason]
        if math_answers.reward(f"\\boxed{{{given}}}", gold) != equal
    }
    assert wrong == {(gold, given) for gold, given, _ in ADVERSARIAL[reason]} & MISSED


def test_there_are_enough_adversarial_pairs_of_both_kinds() -> None:
    rows = [tuple(row) for reason in ADVERSARIAL.values() for row in reason]
    assert len(set(rows)) == len(rows) >= 300
    assert 0.35 < sum(equal for *_, equal in rows) / len(rows) < 0.65


def test_there_are_enough() -> None:
    assert len({(answer, boxed) for _, answer, boxed, _ in KNOWN}) >= 300
    zeros = sum(expected == 0 for *_, expected in KNOWN)
    assert zeros >= 60, "a scorer that always says right must fail"


@pytest.mark.parametrize("count", [200, pytest.param(2000, marks=pytest.mark.thorough)])
def test_pairs_that_are_written_by_rule(count: int) -> None:
    """One value written two ways, or two values: the answer is known without a scorer."""
    made = list(generated.pairs(count, seed=11))
    wrong = [(gold, given) for gold, given, same in made if math_answers.equal(gold, given) != same]
    assert not wrong
    assert 0.4 * count < sum(same for *_, same in made) < 0.6 * count


@pytest.mark.parametrize("answer", sorted({answer for _, answer, _, _ in KNOWN}))
def test_an_answer_equals_itself(answer: str) -> None:
    assert math_answers.score(f"\\boxed{{{answer}}}", answer) == 1
    assert math_answers.score(f"\\boxed{{ {answer} }}.", answer) == 1
