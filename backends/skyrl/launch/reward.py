"""The reward of a response: the rule that `needs.json` names, by the scorer in `orch_scoring/`.

Both lie beside this file in a cell's plan. orch_skyrl.py loads it, by its path.
"""

import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

PLAN = Path(__file__).resolve().parent
sys.path.append(str(PLAN))
RULE = json.loads((PLAN / "needs.json").read_text(encoding="utf-8"))["prompts"]["reward"]
score: Callable[[str, str], float] = import_module("orch_scoring").reward_function(RULE)
