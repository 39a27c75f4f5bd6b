"""Countdown problems from reasoning-gym's generator, with fixed seeds.

reasoning-gym 0.1.25 draws problem i of seed s from Random(s + i): seeds closer together than a set
is long share problems, so the seeds below lie far apart. Problems of training are left out of the
held-out ones.
"""

import json
from collections.abc import Collection, Iterator
from itertools import count
from typing import NamedTuple

from orchestrator.environments.extras import install_line
from orchestrator.errors import EnvironmentFault

TRAIN_SEED, VALIDATION_SEED = 0, 1_000_000_000
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

    @property
    def label(self) -> str:
        """Return what the reward compares with."""
        return json.dumps({"numbers": list(self.numbers), "target": self.target})


def problems(wanted: int, seed: int, without: Collection[Problem] = ()) -> list[Problem]:
    """`wanted` different problems, none of them among `without` (in any order of its numbers)."""
    taken = {_unordered(problem) for problem in without}
    generated: dict[object, Problem] = {}
    for problem in _drawn(seed):
        if len(generated) == wanted:
            break
        if _unordered(problem) not in taken:
            generated.setdefault(_unordered(problem), problem)
    return list(generated.values())


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
    for index in count():
        facts = dataset[index]["metadata"]
        yield Problem(tuple(facts["numbers"]), facts["target"])
