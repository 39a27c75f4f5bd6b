"""The embedded tasks: four string skills on five digits, one character per token.

A prompt is `<bos>S41973=` (8 tokens). A response is the answer's digits and `<eos>` (6 tokens). S
sorts in ascending order, R reverses, C copies, I increments each digit modulo 10. The policy is
trained on one skill (in domain). The other skills show the cost of training (out of domain).
"""

from collections.abc import Sequence
from typing import Literal

Skill = Literal["sort", "reverse", "copy", "increment"]
SKILLS: tuple[Skill, ...] = ("sort", "reverse", "copy", "increment")
LETTER: dict[Skill, str] = {"sort": "S", "reverse": "R", "copy": "C", "increment": "I"}

VOCABULARY = ("<pad>", "<bos>", "<eos>", *"0123456789", "=", *"SRCI")
PAD, BOS, EOS = 0, 1, 2
NUM_DIGITS = 5
PROMPT_TOKENS = NUM_DIGITS + 3
ANSWER_TOKENS = NUM_DIGITS + 1
"""Digits and <eos>."""

NUM_TRAIN_PROBLEMS = 89_994
"""Problems of each skill that are not held out."""


def answer(skill: Skill, digits: Sequence[int]) -> list[int]:
    """Return the one right answer, as digits."""
    if skill == "sort":
        return sorted(digits)
    if skill == "reverse":
        return list(reversed(digits))
    if skill == "copy":
        return list(digits)
    return [(d + 1) % 10 for d in digits]


def text(skill: Skill, digits: Sequence[int]) -> str:
    """Return the prompt as text, for example `S41973=`."""
    return LETTER[skill] + "".join(map(str, digits)) + "="
