"""Problems of any data set of reasoning-gym, with the settings of its authors and fixed seeds."""

import json
from typing import Any

from orchestrator.environments.extras import install_line
from orchestrator.errors import EnvironmentFault, did_you_mean
from orchestrator.scoring import gym

GYM = "reasoning-gym:"
"""Before a data set's name in `data.path`."""


def gym_problems(name: str, seed: int, count: int) -> list[dict[str, Any]]:
    """Return problems of one of reasoning-gym's data sets, with the settings of its authors.

    Raise EnvironmentFault for an unknown name, and for a data set whose problems do not outlive
    JSON: their own answers would then score otherwise in a launch.
    """
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise EnvironmentFault(
            f"{GYM}{name} needs reasoning-gym, which is not installed: {install_line('data')}"
        ) from error
    if name not in DATASETS:
        raise EnvironmentFault(
            f"reasoning-gym has no data set '{name}'{did_you_mean(name, DATASETS)}"
        )
    dataset = reasoning_gym.create_dataset(name, seed=seed, size=count)
    score = reasoning_gym.get_score_answer_fn(name)
    problems: list[dict[str, Any]] = []
    for index in range(count):
        entry = dataset[index]
        try:
            plain = json.loads(json.dumps(entry))
            label = json.dumps({"dataset": name, "row": plain})
            same = gym.reward(str(entry["answer"]), label) == score(str(entry["answer"]), entry)
        except (TypeError, ValueError, KeyError, AttributeError, IndexError):
            same = False
        if not same:
            raise EnvironmentFault(
                f"problem {index} of {GYM}{name} does not outlive JSON, in which prompts are kept: "
                "its scorer would judge another problem. Take another data set"
            )
        problems.append(plain)
    return problems
