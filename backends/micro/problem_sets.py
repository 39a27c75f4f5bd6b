"""Problems of the embedded tasks, as arrays of digits: which are trained on, which are held out."""

from functools import cache
from typing import Any

import numpy as np

from backends.micro.skills import (
    ANSWER_TOKENS,
    BOS,
    EOS,
    LETTER,
    NUM_DIGITS,
    PROMPT_TOKENS,
    SKILLS,
    VOCABULARY,
    Skill,
    answer,
    text,
)

_HELD_OUT_ONE_IN = 10


def is_held_out(number: int | np.ndarray) -> Any:
    """Return True for a problem of the evaluation set. `number`: its digits, below 100000."""
    return (number * 2654435761 % 2**32) // 2**8 % _HELD_OUT_ONE_IN == 0


def problems(rng: np.random.Generator, count: int, *, held_out: bool) -> np.ndarray:
    """Return `count` distinct problems, [count, 5] digits, from one side of the split."""
    pool = _pool(held_out)
    return _digits(rng.choice(pool, size=count, replace=False))


def held_out_problems(count: int) -> np.ndarray:
    """Return the first `count` problems of the evaluation set, [count, 5] digits.

    They are always the same.
    """
    return _digits(np.random.default_rng(20251221).permutation(_pool(True))[:count])


def prompts(skill: str, count: int | None) -> tuple[list[tuple[str, str]], ...] | None:
    """Return pairs of prompt and right answer as text: to train on, and held out.

    They are always the same for a count (None: 2,000). Return None for an unknown skill.
    """
    known = next((each for each in SKILLS if each == skill), None)
    if known is None:
        return None
    train = problems(np.random.default_rng(0), count or 2000, held_out=False)
    parts = (train, held_out_problems(200))
    return tuple(
        [(text(known, row), "".join(map(str, answer(known, row)))) for row in part.tolist()]
        for part in parts
    )


def encode(skill: Skill, digits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return token ids of prompts [N, 8] and right answers [N, 6], for problems [N, 5]."""
    count = len(digits)
    first_digit = VOCABULARY.index("0")
    prompts = np.empty((count, PROMPT_TOKENS), dtype=np.int64)
    prompts[:, 0] = BOS
    prompts[:, 1] = VOCABULARY.index(LETTER[skill])
    prompts[:, 2:-1] = digits + first_digit
    prompts[:, -1] = VOCABULARY.index("=")
    answers = np.full((count, ANSWER_TOKENS), EOS, dtype=np.int64)
    answers[:, :-1] = _answers(skill, digits) + first_digit
    return prompts, answers


def _answers(skill: Skill, digits: np.ndarray) -> np.ndarray:
    """Return `skills.answer` of each row."""
    of_all = {
        "sort": lambda: np.sort(digits, 1),
        "reverse": lambda: digits[:, ::-1],
        "copy": lambda: digits,
        "increment": lambda: (digits + 1) % 10,
    }
    return of_all[skill]()


@cache
def _pool(held_out: bool) -> np.ndarray:
    numbers = np.arange(10**NUM_DIGITS)
    pool: np.ndarray = numbers[is_held_out(numbers) == held_out]
    return pool


def _digits(numbers: np.ndarray) -> np.ndarray:
    powers = 10 ** np.arange(NUM_DIGITS - 1, -1, -1)
    return numbers[:, None] // powers % 10
