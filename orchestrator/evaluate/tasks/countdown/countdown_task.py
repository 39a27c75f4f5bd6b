"""What the task file of Countdown refers to: its items and how a response is scored."""

import json
from pathlib import Path
from typing import Any

from orchestrator.data.generate import Problem
from orchestrator.evaluate import items, task_data
from orchestrator.evaluate.task_data import keep as keep
from orchestrator.scoring import countdown

PROBLEMS = Path(__file__).parent / "held_out.jsonl"
"""One line a problem: numbers, target, and a solution (which is not shown)."""


def dataset(**_: object) -> dict[str, task_data.Items]:
    """The held-out problems; `target` is what the scorer reads, as JSON."""
    lines = PROBLEMS.read_text(encoding="utf-8").splitlines()
    return {"test": task_data.Items(map(_item, map(json.loads, lines)))}


def _item(problem: dict[str, Any]) -> dict[str, Any]:
    """Asked in the words of training."""
    asked = Problem(tuple(problem["numbers"]), problem["target"])
    target = {"numbers": asked.numbers, "target": asked.target}
    return {"prompt": asked.question, "target": json.dumps(target)}


def score(item: dict[str, str], results: list[list[str]]) -> dict[str, Any]:
    """Return the scores of the k responses to one item.

    `reward@k` is the mean of reasoning-gym's score, which gives something for trying; `mean@k`
    counts what is solved.
    """
    (responses,) = results
    rewards = [countdown.reward(response, item["target"]) for response in responses]
    answers = [countdown.extract(response) for response in responses]
    correct = [int(reward == countdown.RIGHT) for reward in rewards]
    return {
        **items.metrics(answers, correct),
        "reward@k": sum(rewards) / len(rewards),
        "correct": correct,
        "answers": answers,
    }
