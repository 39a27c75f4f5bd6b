"""A SkyRL launch over Ray's border: `train` is pickled by value, and runs in another process.

python pickled.py send FILE ORCH_SKYRL: runs ORCH_SKYRL as a script; what it hands to Ray goes to
FILE. python pickled.py run FILE: unpickles and runs it, as Ray's worker does; prints ANSWER and
JSON. Stand-ins are for what SkyRL and Ray bring alone; cloudpickle is the real one.
"""

import json
import runpy
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import cloudpickle

ENVIRONMENTS = {}


class BaseTextEnv:
    def __init__(self):
        self.turns = 0


class BaseTextEnvStepOutput(SimpleNamespace):
    pass


class BasePPOExp:
    """SkyRL's experiment: `run` calls all that a subclass may replace."""

    def __init__(self, config):
        self.tokenizer = SimpleNamespace(chat_template="its own")

    def get_train_dataset(self):
        return SimpleNamespace(dataframe=Rows(3))

    def get_trainer(self, *args, **kwargs):
        return Trainer("its own")

    def run(self):
        rows = self.get_train_dataset().dataframe.count
        environment = ENVIRONMENTS["orch"]({"reward_spec": {"ground_truth": "4"}}, other=1)
        rewards = [environment.step(text).reward for text in ("4", "5")]
        print(
            "ANSWER "
            + json.dumps([self.get_trainer(), self.tokenizer.chat_template, rows, rewards])
        )


class Trainer(str):
    """SkyRL's trainer, as far as it exports the policy."""

    def save_models(self):
        pass


class Rows:
    """A datasets.Dataset, as far as passes over it go."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def shuffle(self, seed):
        return self

    def select(self, which):
        return Rows(len(which))


def stand_in(name, **members):
    module = types.ModuleType(name)
    module.__dict__.update(members)
    sys.modules[name] = module


def libraries():
    for name in (
        "skyrl",
        "skyrl.train",
        "skyrl.train.entrypoints",
        "skyrl.train.utils",
        "skyrl.backends",
        "skyrl.backends.skyrl_train",
        "skyrl_gym",
        "skyrl_gym.envs",
        "skyrl.backends.skyrl_train.utils",
    ):
        stand_in(name)
    registry = SimpleNamespace(register=lambda name, function: None)
    stand_in(
        "skyrl.backends.skyrl_train.utils.ppo_utils",
        AdvantageEstimatorRegistry=registry,
        PolicyLossRegistry=registry,
    )
    stand_in(
        "skyrl_gym.envs.base_text_env",
        BaseTextEnv=BaseTextEnv,
        BaseTextEnvStepOutput=BaseTextEnvStepOutput,
    )

    def register(**told):
        ENVIRONMENTS[told["id"]] = told["entry_point"]

    stand_in("skyrl_gym.envs.registration", register=register)
    stand_in("skyrl.train.entrypoints.main_base", BasePPOExp=BasePPOExp)
    stand_in(
        "skyrl.train.fully_async_trainer",
        FullyAsyncRayPPOTrainer=lambda *args, **kwargs: Trainer("asynchronous"),
    )
    stand_in(
        "skyrl.train.config",
        SkyRLTrainConfig=SimpleNamespace(
            from_cli_overrides=lambda _: SimpleNamespace(
                trainer=SimpleNamespace(train_batch_size=2, seed=0)
            )
        ),
    )
    stand_in(
        "skyrl.train.utils.utils",
        initialize_ray=lambda config: None,
        validate_cfg=lambda config: None,
    )
    stand_in("datasets", concatenate_datasets=lambda passes: Rows(sum(map(len, passes))))


def send(file, script):
    def remote(**_):
        def of(function):
            def call(*arguments):
                Path(file).write_bytes(cloudpickle.dumps((function, arguments)))

            return SimpleNamespace(remote=call)

        return of

    stand_in("ray", remote=remote, get=lambda reference: None)
    sys.argv = [
        script,
        "orch.chat_template=none",
        "orch.max_training_steps=4",
        "orch.asynchronous=true",
    ]
    runpy.run_path(script, run_name="__main__")


def run(file):
    function, arguments = cloudpickle.loads(Path(file).read_bytes())
    function(*arguments)


if __name__ == "__main__":
    libraries()
    {"send": send, "run": run}[sys.argv[1]](*sys.argv[2:])
