"""Problems from reasoning-gym's generators, with fixed seeds: Countdown, or any of its data sets.

reasoning-gym 0.1.25 draws problem i of seed s from Random(s + i): seeds closer together than a set
is long share problems, so the seeds below lie far apart. Problems of training are left out of the
held-out ones.
"""

import json
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from orchestrator.environments.extras import install_line
from orchestrator.errors import EnvironmentFault, did_you_mean
from orchestrator.scoring import gym

TRAIN_SEED, VALIDATION_SEED, EVALUATION_SEED = 0, 1_000_000_000, 2_000_000_000
GYM = "reasoning-gym:"
"""Before a data set's name in `data.path`."""
NUM_TRAIN, NUM_VALIDATION = 2000, 200
"""Where the spec does not say. 2,000: as many as verifiers' reasoning-gym environment takes."""


class Problem(NamedTuple):
    """Numbers from 1 to 100, four to six of them; target from 100 to 999: the generator's own."""

    numbers: tuple[int, ...]
    target: int

    @property
    def question(self) -> str:
        """In our words: the generator's allow leaving numbers out, and its scorer does not."""
        return (
            f"Make {self.target} out of the numbers {', '.join(map(str, self.numbers))}. Use each "
            "of them exactly once, with +, -, *, / and brackets, and nothing else. Write the "
            "expression alone, without an equals sign, between <answer> and </answer>."
        )


def problems(count: int, seed: int, without: Collection[Problem] = ()) -> list[Problem]:
    """`count` different problems, none of them among `without` (in any order of its numbers)."""
    taken = {_unordered(problem) for problem in without}
    generated: list[Problem] = []
    for problem in _drawn(seed):
        if len(generated) == count:
            break
        if _unordered(problem) not in taken:
            taken.add(_unordered(problem))
            generated.append(problem)
    return generated


def _unordered(problem: Problem) -> tuple[tuple[int, ...], int]:
    return tuple(sorted(problem.numbers)), problem.target


def _drawn(seed: int) -> Iterator[Problem]:
    try:
        from reasoning_gym.games.countdown import CountdownConfig, CountdownDataset
    except ImportError as error:
        raise EnvironmentFault(
            "Countdown problems are made by reasoning-gym, which is not installed: "
            f"{install_line('data')}, or put a file of problems where data.path says"
        ) from error
    dataset = CountdownDataset(CountdownConfig(seed=seed, size=1_000_000_000))
    index = 0
    while True:
        facts = dataset[index]["metadata"]
        yield Problem(tuple(facts["numbers"]), facts["target"])
        index += 1


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
