"""The reward of one response. OpenRLHF's samplers load this file from a cell's plan, by its path.

Beside it lie `needs.json`, which names the rule, and the scorer, `orch_scoring/`. It is called in a
thread; and what it raises is swallowed there, so that training dies much later: what the scorer
needs is asked for when the file is loaded.
"""

import json
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

PLAN = Path(__file__).resolve().parent
sys.path.append(str(PLAN))
RULE = json.loads((PLAN / "needs.json").read_text(encoding="utf-8"))["prompts"]["reward"]
REWARD = import_module("orch_scoring").reward_function(RULE)


def reward_func(
    queries: Sequence[str], prompts: Sequence[str], labels: Sequence[str]
) -> dict[str, object]:
    """Return the reward of one response, as OpenRLHF reads it from a reward function.

    Each argument has one element. `queries` holds prompt and response as one text, after the token
    that some tokenizers put before a text.
    """
    _, prompt, response = queries[0].partition(prompts[0])
    reward = REWARD(response if prompt else queries[0], labels[0])
    return {"rewards": reward, "scores": reward, "extra_logs": {}}
