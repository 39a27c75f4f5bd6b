"""A problem of any data set of reasoning-gym, scored by that data set's own scorer.

A label is JSON with `dataset`, the data set's name, and `row`, the problem as it was generated.
The answer is what stands between the last <answer> and </answer>, else the whole response.
"""

import json
import re
from functools import cache
from importlib import import_module
from typing import Any

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def ready() -> None:
    """Raise ModuleNotFoundError where reasoning-gym is not installed."""
    import_module("reasoning_gym")


@cache
def _score(dataset: str) -> Any:
    return import_module("reasoning_gym").get_score_answer_fn(dataset)


def answer_in(response: str) -> str:
    """Return the answer in a response."""
    found = _ANSWER.findall(response)
    return str(found[-1] if found else response).strip()


def reward(response: str, label: str) -> float:
    """Return the data set's score of a response, from 0 to 1."""
    content = json.loads(label)
    return float(_score(content["dataset"])(answer_in(response), content["row"]))
