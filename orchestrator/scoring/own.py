"""A reward of the user's own: a function in `own_code.py`, which is copied beside this file.

A label is JSON with `answer` and `row`: the answer that was found in the row, or null, and the
whole row of the data set. The function is called with the response, both of them, and returns a
number.
"""

import json
import math
from functools import partial
from importlib import import_module
from typing import Any, Callable  # noqa: UP035  (as the other rules: Python 3.10 reads it)


def function_of(rule: str) -> str:
    """Return the function in `my_reward.py:score@0123456789abcdef`."""
    return rule.rpartition("@")[0].rpartition(":")[2]


def reward_of(rule: str) -> Callable[[str, str], float]:
    """Return `reward(response, label)`. Raise what loading the user's file raises."""
    code = import_module(f"{__package__}.own_code")
    name = function_of(rule)
    score = getattr(code, name, None)
    if not callable(score):
        raise TypeError(f"the reward file has no function '{name}'")
    return partial(_reward, score)


def _reward(score: Any, response: str, label: str) -> float:
    content = json.loads(label)
    value = score(response, content["answer"], content["row"])
    if not isinstance(value, (bool, int, float)) or not math.isfinite(value):
        raise TypeError(f"a reward must be a finite number; the function returned {value!r}")
    return float(value)
