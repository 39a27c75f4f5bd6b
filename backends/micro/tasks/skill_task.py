"""What the task files of the micro skills refer to: their items and how a response is scored."""

from typing import Any

from backends.micro import skills

NUM_ITEMS = 512
"""As many held-out problems as the trainer's own last evaluation has; fewer may be asked for."""


def dataset(skill: skills.Skill, **_: object) -> dict[str, Any]:
    """The held-out problems of a skill, the same ones for each: made here, nothing is fetched."""
    from datasets import Dataset

    problems = skills.held_out_problems(NUM_ITEMS).tolist()
    items = {
        "prompt": [skills.text(skill, digits) for digits in problems],
        "target": ["".join(map(str, skills.answer(skill, digits))) for digits in problems],
    }
    return {"test": Dataset.from_dict(items)}


def score(item: dict[str, str], results: list[list[str]]) -> dict[str, Any]:
    """Scores the k responses to one item, all of which the filter lets through.

    A response is right if it is the answer and then <eos>. With as many responses as k, the
    unbiased estimate of pass@k, 1 - C(wrong, k) / C(k, k), is whether any of them is right.
    """
    (responses,) = results
    correct = [int(response == item["target"]) for response in responses]
    return {
        "mean@k": sum(correct) / len(correct),
        "pass@k": float(any(correct)),
        "distinct@k": float(len(set(responses))),
        "correct": correct,
    }


def keep(responses: list[list[str]], _items: object) -> list[list[str]]:
    """The filter that keeps every response."""
    return responses


def share(correct: list[list[int]]) -> float:
    """The share of right responses over all items."""
    return sum(map(sum, correct)) / sum(map(len, correct))
