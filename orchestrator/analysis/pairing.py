"""Pair runs by seeds and items, with everything else equal.

In this module a configuration is a mapping from seed to run. A side of a comparison is a group of
configurations that are averaged. A setting is a pair of sides, left and right.

Every run of a task answers the same items in the same order. Callers check this first: task version
and number of items are in `runs.EvaluationProtocol`.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from orchestrator.analysis.runs import MeasuredRun
from orchestrator.analysis.stats import (
    Estimate,
    Improvement,
    estimate_over_items,
    mean_relative_improvement,
)

RunsBySeed = Mapping[int, MeasuredRun]
"""One configuration: seed -> run."""
RunGroup = Sequence[RunsBySeed]
"""Configurations that are averaged."""
_ROUNDING = 1e-5
"""Largest difference between the items' mean and the final value: stored scores are rounded."""


def finished_by_seed(runs: Iterable[MeasuredRun], metric: str) -> RunsBySeed:
    """Return seed -> run for the runs that have a final value of the metric."""
    return {run.seed: run for run in runs if metric in run.finals}


def runs_by_configuration(runs: Sequence[MeasuredRun], metric: str) -> list[RunsBySeed]:
    """Return the configurations of these runs, each with the runs that have a final value."""
    configurations: dict[tuple[tuple[str, str], ...], list[MeasuredRun]] = {}
    for run in runs:
        configurations.setdefault(tuple(sorted(run.traits.items())), []).append(run)
    return [finished_by_seed(same, metric) for same in configurations.values()]


def final_values(runs: RunsBySeed, metric: str) -> dict[int, float]:
    """Return seed -> final value."""
    return {seed: run.finals[metric] for seed, run in runs.items() if metric in run.finals}


def mean_by_seed(settings: Sequence[Sequence[Mapping[int, float]]]) -> dict[int, float]:
    """Return seed -> mean over settings of the mean over their configurations.

    Each configuration maps a seed to a value. The result has only the seeds that every
    configuration of every setting has.
    """
    finished = [set(values) for setting in settings for values in setting]
    seeds = set.intersection(*finished) if finished else set()
    return {seed: fmean(fmean(at[seed] for at in one) for one in settings) for seed in seeds}


def relative_difference(
    settings: Sequence[tuple[RunGroup, RunGroup]], metric: str
) -> Improvement | None:
    """Return the relative improvement of left over right, averaged over settings and tasks."""
    runs = [run for sides in settings for side in sides for one in side for run in one.values()]
    return mean_relative_improvement(
        [
            (
                mean_by_seed([[final_values(one, name) for one in left]]),
                mean_by_seed([[final_values(one, name) for one in right]]),
            )
            for name in task_metrics(runs, metric)
            for left, right in settings
        ]
    )


def mean_over_items(runs: RunsBySeed, metric: str) -> Estimate | None:
    """Return a configuration's mean over seeds and items, or None without scores of items."""
    tables = _item_tables([([runs], [])], metric)
    return None if tables is None else estimate_over_items(tables)


def difference_over_items(
    settings: Sequence[tuple[RunGroup, RunGroup]], metric: str
) -> Estimate | None:
    """Return left minus right over common seeds and items, averaged over settings.

    Return None without scores of single items.
    """
    tables = _item_tables(settings, metric)
    return None if tables is None else estimate_over_items(tables)


def task_metrics(runs: Sequence[MeasuredRun], metric: str) -> list[str]:
    """Return the mean@k of each task of a domain's mean. Return [metric] for other metrics."""
    tasks = _tasks_of(runs, metric)
    if metric.split("/")[1:2] not in (["in_domain"], ["out_of_domain"]) or not tasks:
        return [metric]
    largest = []
    for task in tasks:
        names = [m for run in runs for m in run.finals if m.startswith(f"eval/{task}/mean@")]
        if names:
            largest.append(max(names, key=lambda name: int(name.rpartition("@")[2])))
    return largest or [metric]


def _item_tables(settings: Sequence[tuple[RunGroup, RunGroup]], metric: str) -> list[Any] | None:
    """Return one array [seeds, items] of left minus right for each task of the metric, or None."""
    import numpy as np

    configurations = [one for sides in settings for side in sides for one in side]
    seeds = sorted(set.intersection(*map(set, configurations))) if configurations else []
    runs = [one[seed] for one in configurations for seed in seeds]
    tasks = _tasks_of(runs, metric)
    if not tasks or not all(_items_match_final(run, metric) for run in runs):
        return None
    tables = []
    for task in tasks:
        if len({len(run.items.get(task, ())) for run in runs}) != 1:
            return None
        rows = [[_item_row(left, right, seed, task) for left, right in settings] for seed in seeds]
        tables.append(np.array([np.mean(row, axis=0) for row in rows]))
    return tables


def _item_row(left: RunGroup, right: RunGroup, seed: int, task: str) -> Any:
    """Return the mean of left minus the mean of right for one seed, [items]."""
    import numpy as np

    mean = np.mean([one[seed].items[task] for one in left], axis=0)
    return mean - np.mean([one[seed].items[task] for one in right], axis=0) if right else mean


def _tasks_of(runs: Sequence[MeasuredRun], metric: str) -> list[str]:
    """Return the tasks that a metric averages, or no tasks if it is not a mean over items."""
    if not metric.startswith("eval/") or not metric.rpartition("/")[2].startswith("mean"):
        return []
    protocols = [run.protocols.get(metric, frozenset()) for run in runs]
    return sorted({str(part[0]) for protocol in protocols for part in protocol})


def _items_match_final(run: MeasuredRun, metric: str) -> bool:
    """Return True if every task's items are known and average to the final value."""
    tasks = _tasks_of([run], metric)
    if not all(len(run.items.get(task, ())) for task in tasks):
        return False
    means = [fmean(map(float, run.items[task])) for task in tasks]
    return abs(fmean(means) - run.finals[metric]) < _ROUNDING
