"""Items and their scores: what is kept of every prompt, and what is averaged. Pure.

One item is one line of <task>-<key>.jsonl: item, prompt, target, responses, and for each metric of
the task its value on this item. Scores are means over items; the standard error is that of such a
mean, from the spread over items.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from orchestrator.identity import digest

Item = Mapping[str, Any]


class Mean(NamedTuple):
    """A mean over items. `stderr` None: there is only one item."""

    value: float
    stderr: float | None


def named(metric: str, repeats: int) -> str:
    """Return the displayed name of a metric: `mean@32` for `mean@k`."""
    return metric.replace("@k", f"@{repeats}")


def means(items: Sequence[Item], repeats: int) -> dict[str, Mean]:
    """Return the mean of every metric over the items, by its displayed name."""
    metrics = items[0]["metrics"]
    return {
        named(name, repeats): mean([item["metrics"][name] for item in items]) for name in metrics
    }


def mean(values: Sequence[float]) -> Mean:
    """Return the mean of values and its standard error, which is None for a single value."""
    count = len(values)
    middle = math.fsum(values) / count
    if count < 2:
        return Mean(middle, None)
    spread = math.fsum((value - middle) ** 2 for value in values) / (count - 1)
    return Mean(middle, math.sqrt(spread / count))


def ratio(above: Sequence[float], below: Sequence[float]) -> Mean:
    """Return a ratio of two means, with its standard error to first order (delta method)."""
    middle = math.fsum(above) / math.fsum(below)
    level = math.fsum(below) / len(below)
    rest = mean([a - middle * b for a, b in zip(above, below, strict=True)])
    return Mean(middle, None if rest.stderr is None else rest.stderr / level)


def shares_of(items: Sequence[Item]) -> tuple[float, ...]:
    """Return the mean@k of each item, in order; nothing if the metric has no mean@k
    (divergences)."""
    name = next((name for name in items[0].get("metrics", ()) if name.startswith("mean@")), None)
    return () if name is None else tuple(round(item["metrics"][name], 6) for item in items)


def fingerprint_of(items: Iterable[Item]) -> str:
    """Return a hash of the prompts and targets, in order."""
    return digest([[item["prompt"], str(item["target"])] for item in items])


def pass_at(k: int, count: int, correct: int) -> float:
    """Return the unbiased estimate of pass@k from `correct` of `count` responses.

    It is 1 - C(count - correct, k) / C(count, k) (Chen et al. 2021).
    """
    return 1.0 - math.comb(count - correct, k) / math.comb(count, k)


def majority(answers: Sequence[str | None], correct: Sequence[float]) -> float:
    """Return 1 if the most frequent answer is right, 0 if not, and the mean over tied answers.

    Responses without an answer do not vote.
    """
    votes = Counter(answer for answer in answers if answer is not None)
    if not votes:
        return 0.0
    most = max(votes.values())
    right = dict(zip(answers, correct, strict=True))
    winners = [answer for answer, count in votes.items() if count == most]
    return math.fsum(right[answer] for answer in winners) / len(winners)


def metrics(answers: Sequence[str | None], correct: Sequence[float]) -> dict[str, float]:
    """Return the metrics of the k responses to one item, given their canonical answers.

    `pass@n` for n = 2, 4, 8, ... below k besides pass@k; `distinct@k` counts different answers,
    "none" among them.
    """
    count, right = len(correct), sum(value == 1 for value in correct)
    below = [2**power for power in range(1, count.bit_length()) if 2**power < count]
    return {
        "mean@k": math.fsum(correct) / count,
        "pass@k": pass_at(count, count, right),
        "maj@k": majority(answers, correct),
        "distinct@k": float(len(set(answers))),
        **{f"pass@{n}": pass_at(n, count, right) for n in below},
    }
