"""The points that a run lacks, also if its cell was resumed and has trained some steps twice."""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from orchestrator.records import MetricPoint
from orchestrator.tracking.content import Content, Mark, Marks, digest_to, milliseconds
from orchestrator.tracking.names import allowed_name

INGESTING = "orch.ingesting"
INGESTED = "orch.ingested"
DURATIONS = "time/"
"""Metrics of durations. They are no results, so the first measured values stay."""
RETRAINED_BEFORE = "steps were trained again"


class Point(NamedTuple):
    """One value of a metric. It has the field names of mlflow.entities.Metric."""

    key: str
    value: float
    timestamp: int
    step: int
    model_id: str | None = None


def rows(
    points: Iterable[MetricPoint],
    names: Collection[str] | None = None,
    models: Mapping[int, str] | None = None,
) -> Iterator[Point]:
    """Yield the points that MLflow should have, in the order of steps.

    names: the metrics; None: all. models: step -> id of the model that was scored at this step.
    Infinities become NaN, because MLflow would store the largest float, which no curve can show.
    """
    for point in points:
        at, step = milliseconds(point.time), point.step
        model = models.get(step) if models else None
        for name, value in point.values.items():
            if names is None or name in names:
                finite = value if math.isfinite(value) else math.nan
                yield Point(allowed_name(name), float(finite), at, step, model)


def lacking(content: Content, done: Marks) -> list[Point]:
    """Return the points of curves that a run does not have yet. done: what it has."""
    step = -1 if done.curves is None else done.curves.step
    known = content.names if done.names is None else content.names & set(done.names)
    later = (point for point in content.curves if point.step > step)
    new = content.names - known
    earlier = (point for point in content.curves if point.step <= step) if new else ()
    return [*rows(earlier, new), *rows(later, content.names)]


def holds(points: Sequence[MetricPoint], mark: Mark | None, names: Collection[str] | None) -> bool:
    """Return True if a stream starts with exactly what a mark states of these metrics."""
    if mark is None:
        return True
    if not points or points[-1].step < mark.step:
        return False
    return digest_to(points, mark.step, names) == mark.digest


def is_rewritten(run: Any, content: Content) -> bool:
    """Return True if points or params that may be in MLflow differ from those on disk."""
    ingesting = Marks.of(run.data.tags.get(INGESTING))
    if ingesting is None:
        return True
    if not (
        holds(content.curves, ingesting.curves, ingesting.names)
        and holds(content.scores, ingesting.scores, ingesting.names)
    ):
        return True
    # MLflow never changes a param that is logged.
    return any(run.data.params.get(k, v) != v for k, v in content.params.items())


def is_resumed(run: Any, content: Content) -> bool:
    """Return True if curves that differ from the logged ones belong to the same training, resumed.

    This holds if the first attempt started at the same time as the run, with the same params, and
    if the scores are unchanged.
    """
    ingesting = Marks.of(run.data.tags.get(INGESTING))
    return (
        ingesting is not None
        and run.info.start_time == content.started
        and all(run.data.params.get(k, v) == v for k, v in content.params.items())
        and holds(content.scores, ingesting.scores, ingesting.names)
    )


class Retrained(NamedTuple):
    """The points to log so that a run has the content of a resumed cell, and a sentence about
    them."""

    rows: list[Point]
    sentence: str


def retrained(client: Any, run: Any, content: Content) -> Retrained:
    """Compare all curves with the run's whole history, value by value. This needs one call per
    metric.

    Equal values are not logged again, so the earlier time stays. Other values are logged with a
    later time, and the old ones stay too.
    """
    wanted = list(rows(content.curves, content.names))
    old_points: dict[tuple[str, int], list[Any]] = defaultdict(list)
    names = {row.key for row in wanted} & run.data.metrics.keys()
    for name in names:
        for old in client.get_metric_history(run.info.run_id, name):
            old_points[name, old.step].append(old)
    twice: set[int] = set()
    other: set[int] = set()
    missing = []
    for row in wanted:
        logged = old_points.pop((row.key, row.step), [])
        if logged and row.key.startswith(DURATIONS):
            continue
        if not any(_equal(old.value, row.value) for old in logged):
            missing.append(row)
        if any(old.timestamp != row.timestamp for old in logged):
            twice.add(row.step)
        if any(not _equal(old.value, row.value) for old in logged):
            other.add(row.step)
    # steps of an earlier attempt that the new one has not reached
    ahead = {step for _, step in old_points}
    return Retrained(missing, _sentence(twice | ahead, other, ahead))


def _sentence(twice: set[int], other: set[int], ahead: set[int]) -> str:
    if not twice:
        return RETRAINED_BEFORE
    sentence = f"steps {min(twice)} to {max(twice)} were trained again from a checkpoint"
    if other:
        return (
            f"{sentence}, with other values from step {min(other)} on: both are here, the later in "
            "time counts, and the report shows it alone"
        )
    if ahead:
        return f"{sentence}; those from step {min(ahead)} on are of the attempt before"
    return f"{sentence}, with the same values"


def _equal(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))
