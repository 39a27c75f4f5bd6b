"""verl's custom reward function. Its workers load this file from a cell's plan, by its path.

The scorer, `orch_scoring/`, lies beside it; `rule` comes from `reward_kwargs`.
"""

import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent))


@cache
def _reward(rule: str) -> Any:
    return import_module("orch_scoring").reward_function(rule)


def compute_score(
    data_source: str,  # noqa: ARG001 - verl's signature
    solution_str: str,
    ground_truth: str,
    extra_info: Any = None,  # noqa: ARG001  (the library's signature)
    *,
    rule: str,
    **_: Any,
) -> float:
    """Return the reward of a decoded response. `ground_truth` is text; JSON for Countdown."""
    reward: float = _reward(rule)(solution_str, ground_truth)
    return reward
