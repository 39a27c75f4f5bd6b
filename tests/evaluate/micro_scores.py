"""Scores a policy on the embedded tasks with lm-eval, in the product's own worker."""

import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from backends.micro.shipped import POLICIES
from backends.micro.skills import Skill
from orchestrator.evaluate.run import work
from orchestrator.evaluate.scores import ItemRequest, Result, ScoringJob
from orchestrator.records import Engine, EvalTask, Sampling
from tests.evaluate.data import score_key

TASKS = POLICIES.parent / "tasks"
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
        {skill: _read(Path(each.results)) for skill, each in zip(skills, asked, strict=True)}
        for asked in requests
    ]


def _request(policy: Path, skill: Skill, folder: Path, sampling: Sampling) -> ItemRequest:
    task = EvalTask(name=f"micro_{skill}", domain="in", repeats=REPEATS)
    asked = score_key(checkpoint=policy.name, step=0, task=task, sampling=sampling, seed=7)
    results = str(folder / f"{asked.stem}.json")
    task_file = str(TASKS / f"micro_{skill}.yaml")
    return ItemRequest(asked=asked, task_file=task_file, results=results)


def _read(path: Path) -> MicroScore:
    result = Result.model_validate_json(path.read_text())
    lines = path.with_suffix(".jsonl").read_text().splitlines()
    mean = next(score.value for score in result.scores if score.metric.startswith("mean@"))
    return MicroScore(mean, [json.loads(line) for line in lines])
