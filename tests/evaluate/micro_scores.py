"""Scores a policy on the embedded tasks with lm-eval, in the product's own worker."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from backends.micro.skills import Skill
from orchestrator.evaluate.run import work
from orchestrator.evaluate.scores import ItemRequest, ScoringJob
from orchestrator.records import Engine, EvalTask, Sampling
from tests.evaluate.data import answers_of, request

REPEATS = 8


class MicroScore(NamedTuple):
    """What a policy has in one task."""

    mean: float
    """Mean accuracy over items and repeats."""
    items: list[dict[str, Any]]


def micro_scores(
    policy: Path, skills: Sequence[Skill], folder: Path, engine: Engine, *samplings: Sampling
) -> list[dict[Skill, MicroScore]]:
    """Return the score of each skill by each sampling, of one start of the engine.

    Write the harness's files to `folder`.
    """
    requests = [
        [_request(policy, skill, folder, sampling) for skill in skills] for sampling in samplings
    ]
    job = ScoringJob(
        cell_id="cell", checkpoint=str(policy), files={}, asks=(*chain(*requests),), engine=engine
    )
    assert list(work([job], 1)) == [(0, "")]
    return [
        {skill: _read(each) for skill, each in zip(skills, asked, strict=True)}
        for asked in requests
    ]


def _request(policy: Path, skill: Skill, folder: Path, sampling: Sampling) -> ItemRequest:
    task = EvalTask(name=f"micro_{skill}", domain="in", repeats=REPEATS)
    return request(folder, checkpoint=policy.name, step=0, task=task, sampling=sampling, seed=7)


def _read(ask: ItemRequest) -> MicroScore:
    result, items = answers_of(ask)
    mean = next(score.value for score in result.scores if score.metric.startswith("mean@"))
    return MicroScore(mean, items)
