"""The points of a run: those that it lacks, and whether what it has is what the disk has."""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from orchestrator.records import MetricPoint
from orchestrator.tracking.content import Content, Mark, Marks, digest_to, milliseconds
from orchestrator.tracking.names import allowed_name

INGESTING = "orch.ingesting"
INGESTED = "orch.ingested"


class Point(NamedTuple):
    """One value of a metric. It has the field names of mlflow.entities.Metric."""

    key: str
    value: float
    timestamp: int
    step: int


def rows(points: Iterable[MetricPoint], names: Collection[str]) -> Iterator[Point]:
    """Yield the points of these metrics that MLflow should have, in the order of steps.

    Infinities become NaN, because MLflow would store the largest float, which no curve can show.
    """
    for point in points:
        at, step = milliseconds(point.time), point.step
        for name, value in point.values.items():
            if name in names:
                finite = value if math.isfinite(value) else math.nan
                yield Point(allowed_name(name), float(finite), at, step)


def lacking(content: Content, done: Marks) -> list[Point]:
    """Return the points that a run does not have yet. done: what it has."""
    points: list[Point] = []
    for stream, names, mark in (
        (content.curves, content.names, done.curves),
        (content.scores, content.scored, done.scores),
    ):
        step = -1 if mark is None else mark.step
        if new := names - set(done.names):
            points += rows((point for point in stream if point.step <= step), new)
        points += rows((point for point in stream if point.step > step), names)
    return points


def holds(points: Sequence[MetricPoint], mark: Mark | None, names: Collection[str]) -> bool:
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
