"""Runs inside a SkyRL environment: launches, each taken through what orch_skyrl.py does with it
before Ray starts.

python config.py ORCH_SKYRL. Reads a line for each question, a JSON list of lists of arguments, and
prints ANSWER and a JSON list: of each, {"config": what SkyRL made of it, "options": ours} or
{"error": what it said}. See child.py.
"""

import dataclasses
import importlib.util
import json
import sys
from unittest.mock import MagicMock, patch

# Before anything absent is found: these try packages they can do without.
import loguru
import numpy as np  # noqa: F401  (see above)
import omegaconf  # noqa: F401  (see above)
from absent import Absent


def entry():
    spec = importlib.util.spec_from_file_location("orch_skyrl", sys.argv[1])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def construct(config):
    """Its asynchronous trainer, whose checks stand in its constructor."""
    from skyrl.train import fully_async_trainer as module

    def prepare(self, *, cfg):
        self.cfg, self.colocate_all = cfg, cfg.trainer.placement.colocate_all
        self._callback_handler = MagicMock(callbacks=[])
        self.train_dataloader = MagicMock(__len__=lambda _: 1000)

    with patch.object(module.RayPPOTrainer, "__init__", prepare):
        module.FullyAsyncRayPPOTrainer(cfg=config)


def main():
    loguru.logger.remove()
    sys.meta_path.append(Absent())
    import ray

    ray.is_initialized.return_value = False
    ours = entry()
    ours.register()
    from skyrl.train.config import SkyRLTrainConfig
    from skyrl.train.utils.utils import validate_cfg

    def answer(argv):
        try:
            options, overrides = ours.split(argv)
            config = SkyRLTrainConfig.from_cli_overrides(overrides)
            validate_cfg(config)
            if options["asynchronous"] == "true":
                construct(config)
            return {"config": dataclasses.asdict(config), "options": options}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}

    for line in sys.stdin:
        answers = [answer(argv) for argv in json.loads(line)]
        print("ANSWER " + json.dumps(answers, default=str), flush=True)


main()
