"""The reward of one response. OpenRLHF's samplers load this file from a cell's plan, by its path.

Beside it lie `needs.json`, which names the rule, and the scorer, `orch_scoring/`. It is called in a
thread; and what it raises is swallowed there, so that training dies much later: what the scorer
needs is asked for when the file is loaded.
"""

import json
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

PLAN = Path(__file__).resolve().parent
sys.path.append(str(PLAN))
RULE = json.loads((PLAN / "needs.json").read_text(encoding="utf-8"))["prompts"]["reward"]
REWARD = import_module("orch_scoring").reward_function(RULE)
ENDED = re.compile(r"(?:<[|\uff5c][^<>]*[|\uff5c]>|</s>|<eos>|<end_of_turn>)+\s*\Z")
"""Tokens that end a response: the library decodes them with it, other libraries do not."""
TAIL = 200
"""Characters in which they are looked for."""


def reward_func(
    queries: Sequence[str], prompts: Sequence[str], labels: Sequence[str]
) -> dict[str, object]:
    """`queries`: prompt and response as one text. Each argument has one element."""
    response = queries[0].removeprefix(prompts[0])
    reward = REWARD(response[:-TAIL] + ENDED.sub("", response[-TAIL:]), labels[0])
    return {"rewards": reward, "scores": reward, "extra_logs": {}}
