"""What the task files of the micro skills refer to: their items and how a response is scored."""

from collections import Counter
from typing import Any, ClassVar

from backends.micro import skills

NUM_ITEMS = 256
"""As many held-out problems as the trainer's exact accuracy is over; fewer may be asked for."""


class Items(list[dict[str, str]]):
    """What lm-eval asks of a split: a sequence of items whose features have names.

    A `datasets.Dataset` would do, and take longer to iterate than the policy takes to answer.
    """

    features: ClassVar[dict[str, type]] = {"prompt": str, "target": str}


def dataset(skill: skills.Skill, **_: object) -> dict[str, Items]:
    """The held-out problems of a skill, the same ones for each: made here, nothing is fetched."""
    return {
        "test": Items(
            {
                "prompt": skills.text(skill, digits),
                "target": "".join(map(str, skills.answer(skill, digits))),
            }
            for digits in skills.held_out_problems(NUM_ITEMS).tolist()
        )
    }


def score(item: dict[str, str], results: list[list[str]]) -> dict[str, Any]:
    """Scores the k responses to one item, all of which the filter lets through.

    A response is right if it is the answer and then <eos>. With as many responses as k, the
    unbiased estimate of pass@k, 1 - C(wrong, k) / C(k, k), is whether any of them is right. maj@k
    is whether the most frequent response is; of tied ones each counts its share.
    """
    (responses,) = results
    correct = [int(response == item["target"]) for response in responses]
    votes = Counter(responses)
    winners = [each for each, count in votes.items() if count == max(votes.values())]
    return {
        "mean@k": sum(correct) / len(correct),
        "pass@k": float(any(correct)),
        "maj@k": winners.count(item["target"]) / len(winners),
        "distinct@k": float(len(set(responses))),
        "correct": correct,
    }


def keep(responses: list[list[str]], _items: object) -> list[list[str]]:
    """The filter that keeps every response."""
    return responses


def share(correct: list[list[int]]) -> float:
    """The share of right responses over all items."""
    return sum(map(sum, correct)) / sum(map(len, correct))
