"""The items of the embedded skills' task files, and how a response is scored."""

from collections import Counter
from typing import Any, ClassVar

from backends.micro import problem_sets, skills

NUM_ITEMS = 256
"""As many held-out problems as the trainer's exact accuracy is over; fewer may be asked for."""


class HeldOutProblems(list[dict[str, str]]):
    """The items of a split in the form that lm-eval needs: a sequence with named features.

    A `datasets.Dataset` would do, and take longer to iterate than the policy takes to answer.
    """

    features: ClassVar[dict[str, type]] = {"prompt": str, "target": str}


def dataset(skill: skills.Skill, **_: object) -> dict[str, HeldOutProblems]:
    """Return the held-out problems of a skill, always the same ones; nothing is downloaded."""
    return {
        "test": HeldOutProblems(
            {
                "prompt": skills.text(skill, digits),
                "target": "".join(map(str, skills.answer(skill, digits))),
            }
            for digits in problem_sets.held_out_problems(NUM_ITEMS).tolist()
        )
    }


def score(item: dict[str, str], results: list[list[str]]) -> dict[str, Any]:
    """Return the scores of the k responses to one item; the filter lets all of them through.

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
    """Return every response: the filter that drops none."""
    return responses


def share(correct: list[list[int]]) -> float:
    """Return the share of right responses over all items."""
    return sum(map(sum, correct)) / sum(map(len, correct))
