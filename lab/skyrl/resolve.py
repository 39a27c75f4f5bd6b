"""Runs inside a SkyRL environment: launches, each taken through what orch_skyrl.py does with it
before Ray starts.

Reads a line for each question, a JSON list of lists of arguments, and prints ANSWER and a JSON
list: of each, {"values": what SkyRL made of it, "options": ours} or {"error": what it said}.
"""

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

# Before anything absent is found: these try packages they can do without.
import loguru
import numpy as np  # noqa: F401  (see above)
import omegaconf  # noqa: F401  (see above)
from absent import AbsentModules

ENTRY = Path(__file__).parents[2] / "backends" / "skyrl" / "launch" / "orch_skyrl.py"


def entry() -> Any:
    """Return the program of orch's launches, as a module."""
    spec = importlib.util.spec_from_file_location("orch_skyrl", ENTRY)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(ENTRY)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def construct(config: Any) -> None:
    """Make its asynchronous trainer, whose checks stand in its constructor."""
    from skyrl.train import fully_async_trainer as module

    def prepare(self: Any, *, cfg: Any) -> None:
        self.cfg, self.colocate_all = cfg, cfg.trainer.placement.colocate_all
        self._callback_handler = MagicMock(callbacks=[])
        self.train_dataloader = MagicMock(__len__=lambda _: 1000)

    with patch.object(module.RayPPOTrainer, "__init__", prepare):
        module.FullyAsyncRayPPOTrainer(cfg=config)


def main() -> None:
    """Answer the questions on standard input."""
    loguru.logger.remove()
    sys.meta_path.append(AbsentModules())
    import ray

    ray.is_initialized.return_value = False
    ours = entry()
    ours.register()
    from skyrl.train.config import SkyRLTrainConfig
    from skyrl.train.utils.utils import validate_cfg

    def answer(argv: list[str]) -> dict[str, Any]:
        try:
            options, overrides = ours.split(argv)
            config = SkyRLTrainConfig.from_cli_overrides(overrides)
            validate_cfg(config)
            if options["asynchronous"] == "true":
                construct(config)
            return {"values": dataclasses.asdict(config), "options": options}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}

    for line in sys.stdin:
        answers = [answer(argv) for argv in json.loads(line)]
        sys.stdout.write("ANSWER " + json.dumps(answers, default=str) + "\n")
        sys.stdout.flush()


main()
