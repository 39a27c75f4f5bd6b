"""A cell that went on from a checkpoint trained some steps again. It stays one run in MLflow.

MLflow takes no point back. So what a resumed attempt says again is compared with what the run
holds, value by value: equal values are not logged again (the earlier time stays), others stand
beside the old ones, later in time, and the tag `orch.retrained` tells. The run directories, and the
report, hold the resumed attempt's alone.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from orchestrator.tracking.content import Content, Mark, Marks, digest_to, milliseconds
from orchestrator.tracking.names import allowed_name
from orchestrator.types import MetricPoint

RETRAINED = "orch.retrained"
TOOK = "time/"
"""Metrics of what a step took: no result, they stay as they were measured first."""
UNTOLD = "steps were trained again"


def goes_on(run: Any, content: Content, meant: Marks | None) -> bool:
    """Whether curves that differ from those logged are of the same training, resumed: its first
    attempt began when that of the run did, with the same params; and scores are as they were.

    meant: how far the run was logged, or may have been.
    """
    return (
        meant is not None
        and run.info.start_time == content.started
        and all(run.data.params.get(k, v) == v for k, v in content.params.items())
        and holds(content.scores, meant.scores)
    )


class Again(NamedTuple):
    """What is to be logged so that the run holds a resumed cell, and what to say of it."""

    rows: list[Any]
    told: str


def again(client: Any, run: Any, points: Sequence[MetricPoint]) -> Again:
    """Compares all curves with the run's whole history: a call a metric."""
    wanted = list(rows(points))
    held: dict[tuple[str, int], list[Any]] = defaultdict(list)
    names = {row.key for row in wanted} & run.data.metrics.keys()
    for name in names:
        for old in client.get_metric_history(run.info.run_id, name):
            held[name, old.step].append(old)
    twice: set[int] = set()
    other: set[int] = set()
    missing = []
    for row in wanted:
        there = held.pop((row.key, row.step), [])
        if there and row.key.startswith(TOOK):
            continue
        if not any(_equal(old.value, row.value) for old in there):
            missing.append(row)
        if any(old.timestamp != row.timestamp for old in there):
            twice.add(row.step)
        if any(not _equal(old.value, row.value) for old in there):
            other.add(row.step)
    ahead = {step for _, step in held}  # trained before, and not reached again so far
    return Again(missing, _told(twice | ahead, other, ahead))


def _told(twice: set[int], other: set[int], ahead: set[int]) -> str:
    if not twice:
        return UNTOLD
    told = f"steps {min(twice)} to {max(twice)} were trained again from a checkpoint"
    if other:
        return (f"{told}, with other values from step {min(other)} on: both are here, the later in "
                "time counts, and the report shows it alone")  # fmt: skip
    if ahead:
        return f"{told}; those from step {min(ahead)} on are of the attempt before"
    return f"{told}, with the same values"


def _equal(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def holds(points: Sequence[MetricPoint], mark: Mark | None) -> bool:
    """Whether points begin with those of a mark."""
    if mark is None:
        return True
    if not points or points[-1].step < mark.step:
        return False
    return digest_to(points, mark.step) == mark.digest


def rows(points: Iterable[MetricPoint], models: Mapping[int, str] | None = None) -> Iterator[Any]:
    """MLflow's metrics, in the order of steps; models: step -> the model that was scored.

    Infinities become NaN: MLflow would store the largest float, which no curve can show.
    """
    from mlflow.entities import Metric

    for point in points:
        at = milliseconds(point.time)
        more = {"model_id": models[point.step]} if models and point.step in models else {}
        for name, value in point.values.items():
            finite = value if math.isfinite(value) else math.nan
            yield Metric(allowed_name(name), float(finite), at, point.step, **more)
