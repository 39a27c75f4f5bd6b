"""Means over the tasks of a domain, as scores of the tasks `in_domain` and `out_of_domain`."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from orchestrator.fingerprint import digest
from orchestrator.names import is_divergence
from orchestrator.types import Score

TASK = {"in": "in_domain", "out": "out_of_domain"}

Exams = Mapping[str, Mapping[str, AbstractSet[str]]]
"""Cell id -> domain -> the tasks its mean is over."""


def aggregate(scores: Iterable[Score], exams: Exams | None = None) -> list[Score]:
    """For each checkpoint, seed, sampling, domain and metric: the mean over the domain's tasks.

    Each task weighs the same, whatever its number of items. The standard error is that of a mean
    of independent estimates, sqrt(sum se^2) / n: the tasks are fixed, their items are what varies.
    There is no mean where a task is missing that the cell's exam has, where a value is not finite,
    and none of divergences. Without `exams`, the tasks that are there are all.
    """
    groups = defaultdict(list)
    for score in scores:
        if not is_divergence(score.metric):
            of = (score.cell_id, score.step, score.eval_seed, score.sampling, score.domain)
            groups[of, score.metric].append(score)
    return [_mean(group) for group in groups.values() if _is_whole(group, exams)]


def _is_whole(group: list[Score], exams: Exams | None) -> bool:
    asked = (exams or {}).get(group[0].cell_id, {}).get(group[0].domain)
    there = {score.task for score in group}
    return all(math.isfinite(score.value) for score in group) and asked in (None, there)


def _mean(group: list[Score]) -> Score:
    count = len(group)
    errors = [score.stderr for score in group]
    known = [error for error in errors if error is not None]
    seconds = [score.seconds for score in group if score.seconds is not None]
    return group[0].model_copy(
        update={
            "task": TASK[group[0].domain],
            "value": math.fsum(score.value for score in group) / count,
            "stderr": math.hypot(*known) / count if len(known) == count else None,
            "num_items": sum(score.num_items for score in group),
            "task_version": digest(sorted([score.task, score.task_version] for score in group)),
            "seconds": math.fsum(seconds) if seconds else None,
            "items_path": "",
        }
    )
