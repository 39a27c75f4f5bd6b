"""Stands in for what OpenRLHF's script imports and a question to its parser does not need.

`openrlhf.cli.train_ppo_ray` builds its parser under `if __name__ == "__main__"`, so the file is run
as that.
"""

import importlib.util
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

STAND_INS = (
    "ray",
    "ray.util",
    "ray.util.placement_group",
    "openrlhf.trainer",
    "openrlhf.trainer.ray",
    "openrlhf.trainer.ray.launcher",
    "openrlhf.trainer.ray.ppo_actor",
    "openrlhf.trainer.ray.ppo_critic",
)


def script(get_strategy: Callable[..., Any], **of_ray: Callable[..., Any]) -> Callable[[], None]:
    """Put modules that the script imports in place, without what they import. Return the script.

    get_strategy: that of openrlhf.utils. of_ray: members of openrlhf.trainer.ray.
    """
    spec = importlib.util.find_spec("openrlhf")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("openrlhf")
    package = Path(spec.submodule_search_locations[0])
    for name in STAND_INS:
        sys.modules[name] = MagicMock()
    vars(sys.modules["openrlhf.trainer.ray"]).update(of_ray)
    utils = types.ModuleType("openrlhf.utils")
    utils.__path__ = [str(package / "utils")]  # openrlhf.utils.config is the real one
    vars(utils)["get_strategy"] = get_strategy
    sys.modules["openrlhf.utils"] = utils
    file = package / "cli" / "train_ppo_ray.py"
    code = compile(file.read_text(encoding="utf-8"), str(file), "exec")
    return lambda: exec(code, {"__name__": "__main__"})  # noqa: S102  (the library is what is asked)
