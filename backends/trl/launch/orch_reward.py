"""The reward of a batch of responses. TRL's scripts import this file from a launch's folder.

Beside it lie `needs.json`, which names the rule, and the scorer, `orch_scoring/`. What the scorer
needs is asked for when the file is loaded.
"""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

_NEEDS = json.loads((Path(__file__).resolve().parent / "needs.json").read_text(encoding="utf-8"))
_REWARD = import_module("orch_scoring").reward_function(_NEEDS["prompts"]["reward"])


def task_reward(completions: Any, label: Any, **_: Any) -> Any:
    """Return the reward of each response. A response is text, or the messages of a turn."""
    texts = [each if isinstance(each, str) else each[-1]["content"] for each in completions]
    return [_REWARD(text, right) for text, right in zip(texts, label)]  # noqa: B905  # as TRL pairs
