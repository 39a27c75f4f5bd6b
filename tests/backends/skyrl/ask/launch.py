"""Runs inside a SkyRL environment: orch_skyrl.py from its first line to the trainer, without Ray.

python launch.py ORCH_SKYRL key=value ...; reward.py lies beside ORCH_SKYRL. Prints ANSWER and JSON.
SkyRL's experiment is stopped where it would load a tokenizer, data and models.
"""

import json
import os
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import loguru
import numpy as np  # noqa: F401  (see above)
import omegaconf  # noqa: F401  (see above)

sys.path.insert(0, str(Path(__file__).parents[4] / "lab" / "skyrl"))
from absent import AbsentModules

seen = {}


class Experiment:
    """In the place of SkyRL's BasePPOExp, whose hooks it has."""

    def __init__(self, config):
        self.cfg, self.tokenizer = config, SimpleNamespace(chat_template="its own")
        self.train_dataset = self.get_train_dataset()

    def get_train_dataset(self):
        return SimpleNamespace(dataframe="rows")

    def get_trainer(self, **options):
        return SimpleNamespace(**options)

    def run(self):
        import skyrl_gym

        trainer = self.get_trainer(cfg=self.cfg)
        extras = {"reward_spec": {"ground_truth": "4"}}
        environment = skyrl_gym.make("orch", env_config={}, extras=extras)
        environment.init([])
        step = environment.step("four")
        seen.update(
            template=self.tokenizer.chat_template,
            data=self.train_dataset.dataframe,
            trainer=type(trainer).__name__,
            reward=step["reward"],
            done=step["done"],
            tensorboard=os.environ["TENSORBOARD_DIR"],
        )


def main():
    loguru.logger.remove()
    sys.meta_path.append(AbsentModules())
    import ray
    import skyrl.train.entrypoints.main_base as main_base
    from skyrl.train.utils import utils

    ray.is_initialized.return_value = False
    sys.argv = sys.argv[1:]
    with patch.object(utils, "initialize_ray"):
        ours = runpy.run_path(sys.argv[0], run_name="__main__")
    (config, options, folder, board), _ = ray.remote.return_value.return_value.remote.call_args
    seen["algorithm"] = [
        config.trainer.algorithm.use_kl_in_reward,
        config.trainer.algorithm.use_kl_loss,
    ]
    names = ours["train"].__globals__
    names["repeated"] = lambda rows, count, seed: [rows, count, seed]
    with (
        patch.object(main_base, "BasePPOExp", Experiment),
        patch(
            "skyrl.train.fully_async_trainer.FullyAsyncRayPPOTrainer.__init__",
            lambda self, **_: None,
        ),
    ):
        ours["train"](config, options, folder, board)
    print("ANSWER " + json.dumps(seen))


main()
