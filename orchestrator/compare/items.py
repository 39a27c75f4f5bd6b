"""Scores of single items, set side by side: [seeds, items] for each task of a metric.

Every run of a task answers the same items in the same order: task version and number of items are
part of what makes two scores comparable (runs.Protocol), and are checked before.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from orchestrator.compare.crossed import crossed
from orchestrator.compare.estimates import Estimate
from orchestrator.compare.runs import Run

_ROUNDING = 1e-5
Column = Mapping[int, Run]
"""One configuration: seed -> run."""
Side = Sequence[Column]
"""Configurations that are averaged."""


def over_items(column: Column, metric: str) -> Estimate | None:
    """A configuration's mean over seeds and items; None where single items are not known."""
    found = _tables([([column], [])], metric)
    return None if found is None else crossed(found)


def difference_over_items(settings: Sequence[tuple[Side, Side]], metric: str) -> Estimate | None:
    """Left minus right over common seeds and items, averaged over settings; None where single
    items are not known."""
    found = _tables(settings, metric)
    return None if found is None else crossed(found)


def column(runs: Iterable[Run], metric: str) -> Column:
    """The runs of a configuration that have a final value of the metric."""
    return {run.seed: run for run in runs if metric in run.finals}


def _tables(settings: Sequence[tuple[Side, Side]], metric: str) -> list[Any] | None:
    import numpy as np

    columns = [column for sides in settings for side in sides for column in side]
    seeds = sorted(set.intersection(*(set(column) for column in columns))) if columns else []
    runs = [column[seed] for column in columns for seed in seeds]
    tasks = _tasks(runs, metric)
    if not tasks or not all(_agrees(run, metric) for run in runs):
        return None
    tables = []
    for task in tasks:
        if len({len(run.items.get(task, ())) for run in runs}) != 1:
            return None
        rows = [[_setting(left, right, seed, task) for left, right in settings] for seed in seeds]
        tables.append(np.array([np.mean(row, axis=0) for row in rows]))
    return tables


def _setting(left: Side, right: Side, seed: int, task: str) -> Any:
    """[items] of one seed: the mean of left minus the mean of right."""
    import numpy as np

    mine = np.mean([column[seed].items[task] for column in left], axis=0)
    return mine - np.mean([column[seed].items[task] for column in right], axis=0) if right else mine


def _tasks(runs: Sequence[Run], metric: str) -> list[str]:
    """Tasks whose mean the metric is; none for a metric that is no mean over items."""
    if not metric.startswith("eval/") or not metric.rpartition("/")[2].startswith("mean"):
        return []
    asked = [run.protocols.get(metric, frozenset()) for run in runs]
    return sorted({str(part[0]) for protocol in asked for part in protocol})


def task_metrics(runs: Sequence[Run], metric: str) -> list[str]:
    """The mean@k of each task that a domain's mean is over; of anything else, itself."""
    tasks = _tasks(runs, metric)
    if metric.split("/")[1:2] not in (["in_domain"], ["out_of_domain"]) or not tasks:
        return [metric]
    found = []
    for task in tasks:
        names = [m for run in runs for m in run.finals if m.startswith(f"eval/{task}/mean@")]
        if names:
            found.append(max(names, key=lambda name: int(name.rpartition("@")[2])))
    return found or [metric]


def _agrees(run: Run, metric: str) -> bool:
    """Whether every task's items are known and average to the final value."""
    tasks = _tasks([run], metric)
    if not all(len(run.items.get(task, ())) for task in tasks):
        return False
    means = [fmean(map(float, run.items[task])) for task in tasks]
    return abs(fmean(means) - run.finals[metric]) < _ROUNDING
