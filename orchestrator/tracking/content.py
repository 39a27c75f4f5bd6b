"""The content that one MLflow run should have, computed from the files on disk. Writes nothing."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.identity import digest
from orchestrator.records import MetricPoint
from orchestrator.tracking.names import allowed_name, cut

MAX_HASHED_BYTES = 8 << 20
"""Largest size of a file, in bytes, that is compared by content. Larger files are compared by size
and time."""

KEY = "orch.key"
"""Tag of a run or a model: which of orch's it is."""
NOTE = "mlflow.note.content"
INGESTING = "orch.ingesting"
"""Tag with the marks of the points that may be in MLflow."""
INGESTED = "orch.ingested"
"""Tag with the marks of the points that are in MLflow."""


class Point(NamedTuple):
    """One value of a metric. It has the field names of mlflow.entities.Metric."""

    key: str
    value: float
    timestamp: int
    step: int


Points = Mapping[str, Sequence[Point]]
"""Metric, by its name in MLflow -> its points by step."""


class Marks(NamedTuple):
    """The parts of a run's content that are in MLflow. Its JSON is the value of a tag."""

    counts: Mapping[str, int]
    """Metric -> the number of its points."""
    points: str
    """The hash of these points."""
    artifacts: str
    tags: Sequence[str]
    """Names of the tags that orch has set. Other tags of the run were set by a person."""

    @property
    def text(self) -> str:
        """Return the marks as JSON, for a tag."""
        return json.dumps(self._asdict(), separators=(",", ":"))

    @classmethod
    def of(cls, run: Any, tag: str) -> "Marks":
        """Parse a tag of a run. Return empty marks without a tag, or for one that orch did not
        write."""
        try:
            return cls(**json.loads(run.data.tags[tag]))
        except (ValueError, KeyError, TypeError):
            return cls({}, "", "", ())


@dataclass(frozen=True)
class Content:
    """The content of one MLflow run. Times are in milliseconds."""

    key: str
    """`summary` or `cell/<id>`. It never changes, and is unique in an experiment."""
    name: str
    status: str
    """RUNNING, SCHEDULED, FINISHED, FAILED or KILLED, as in MLflow."""
    started: int
    ended: int | None
    tags: Mapping[str, str]
    params: Mapping[str, str] = field(default_factory=dict)
    points: Points = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    """Artifact path -> text."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """Artifact path -> file."""

    @cached_property
    def marks(self) -> Marks:
        """Return the marks of a run that has all of this content."""
        counts = {name: len(points) for name, points in self.points.items()}
        return Marks(
            counts,
            _hash_of(self.points, counts),
            self._artifacts_digest() if self.texts or self.files else "",
            tuple(self.tags),
        )

    def lacking(self, run: Any) -> list[Point]:
        """Return the points that a run does not have yet."""
        done = Marks.of(run, INGESTED).counts
        return [p for name, points in self.points.items() for p in points[done.get(name, 0) :]]

    def is_rewritten(self, run: Any) -> bool:
        """Return True if points or params that may be in MLflow differ from these."""
        if INGESTING not in run.data.tags:
            return True
        begun = Marks.of(run, INGESTING)
        if begun.points != _hash_of(self.points, begun.counts):
            return True
        # MLflow never changes a param that is logged.
        return any(run.data.params.get(name, v) != v for name, v in self.params.items())

    def _artifacts_digest(self) -> str:
        texts = [[path, text] for path, text in sorted(self.texts.items())]
        files = [[path, *_state_of(file)] for path, file in sorted(self.files.items())]
        return digest([texts, files])


def _hash_of(points: Points, counts: Mapping[str, int]) -> str:
    """Return the hash of the first points of each metric."""
    hashed = hashlib.sha256()
    for name, count in sorted(counts.items()):
        for point in points.get(name, ())[:count]:
            hashed.update(f"{name} {point.step} {point.timestamp} {point.value!r}\n".encode())
    return hashed.hexdigest()[:16]


def add_points(points: dict[str, list[Point]], logged: Iterable[MetricPoint]) -> None:
    """Add logged values to `points`.

    Infinities become NaN, because MLflow would store the largest float, which no curve can show.
    """
    for each in logged:
        at = milliseconds(each.time)
        for name, value in each.values.items():
            shown = float(value) if math.isfinite(value) else math.nan
            key = allowed_name(name)
            points.setdefault(key, []).append(Point(key, shown, at, each.step))


def milliseconds(seconds: float) -> int:
    """Return a time in milliseconds, as MLflow needs it. At least 1, because MLflow reads 0 as
    now."""
    return max(1, round(seconds * 1000)) if math.isfinite(seconds) else 1


def safe(texts: Mapping[str, str], longest: int) -> dict[str, str]:
    """Return tags or params in the form that MLflow accepts."""
    return {allowed_name(name): cut(value, longest) for name, value in texts.items()}


def _state_of(file: Path) -> list[object]:
    try:
        size = file.stat().st_size
        if size > MAX_HASHED_BYTES:
            return [size, file.stat().st_mtime_ns]
        return [size, hashlib.sha256(file.read_bytes()).hexdigest()]
    except OSError:
        return []
