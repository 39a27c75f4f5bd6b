"""The content that one MLflow run should have, computed from the files on disk. Writes nothing."""

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from orchestrator.identity import digest
from orchestrator.metrics.points import stretches
from orchestrator.records import MetricPoint
from orchestrator.tracking.names import allowed_name, param_text, tag_text

MAX_HASHED_BYTES = 8 << 20
"""Largest size of a file, in bytes, that is compared by content. Larger files are compared by size
and time."""

KEY = "orch.key"
"""Tag of a run or a model: which of orch's it is."""
NOTE = "mlflow.note.content"

RunStatus = str
"""RUNNING, SCHEDULED, FINISHED, FAILED or KILLED, as in MLflow."""


class Mark(NamedTuple):
    """The last step of a stream of points, and the hash of all points up to that step."""

    step: int
    digest: str


class Marks(NamedTuple):
    """The parts of a run's content that are in MLflow. Its JSON is the value of a tag."""

    curves: Mark | None = None
    scores: Mark | None = None
    artifacts: str = ""
    tags: tuple[str, ...] = ()
    """Names of the tags that orch has set. Other tags of the run were set by a person."""
    names: tuple[str, ...] = ()
    """Names of the logged metrics, of curves and scores."""

    @property
    def text(self) -> str:
        """Return the marks as JSON, for a tag."""
        return json.dumps(self._asdict(), separators=(",", ":"))

    @classmethod
    def of(cls, text: str | None) -> "Marks | None":
        """Parse a tag. Return None without a tag, or for a tag that orch did not write."""
        try:
            plain = json.loads(text or "null")
            curves, scores = (
                None
                if plain[stream] is None
                else Mark(int(plain[stream][0]), str(plain[stream][1]))
                for stream in ("curves", "scores")
            )
            tags, names = tuple(plain["tags"]), tuple(plain["names"])
            return cls(curves, scores, str(plain["artifacts"]), tags, names)
        except (ValueError, KeyError, TypeError, IndexError):
            return None


@dataclass(frozen=True)
class Content:
    """The content of one MLflow run. Times are in milliseconds; metrics have orch's own names."""

    key: str
    """`summary` or `cell/<id>`. It never changes, and is unique in an experiment."""
    name: str
    status: RunStatus
    started: int
    ended: int | None
    tags: Mapping[str, str]
    params: Mapping[str, str] = field(default_factory=dict)
    curves: Sequence[MetricPoint] = ()
    """Every metric of training, as it is on disk."""
    names: frozenset[str] = frozenset()
    """The metrics of `curves` that MLflow holds."""
    scores: Sequence[MetricPoint] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    """Artifact path -> text."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """Artifact path -> file."""

    @property
    def cell_id(self) -> str | None:
        """Return the id of the run's cell; None for the summary."""
        kind, _, name = self.key.partition("/")
        return name if kind == "cell" else None

    @property
    def scored(self) -> frozenset[str]:
        """Return the metrics of `scores`. MLflow holds all of them."""
        return frozenset(name for point in self.scores for name in point.values)

    @cached_property
    def marks(self) -> Marks:
        """Return the marks of a run that has all of this content."""
        artifacts = self._artifacts_digest() if self.texts or self.files else ""
        return Marks(
            last_mark(self.curves, self.names),
            last_mark(self.scores, self.scored),
            artifacts,
            tuple(self.tags),
            tuple(sorted(self.names | self.scored)),
        )

    @cached_property
    def digest(self) -> str:
        """Return a digest that changes whenever any of this content changes."""
        return digest(
            [
                self.key,
                self.name,
                self.status,
                self.started,
                self.ended,
                dict(self.tags),
                dict(self.params),
                self.marks.text,
            ]
        )

    def _artifacts_digest(self) -> str:
        texts = [[path, text] for path, text in sorted(self.texts.items())]
        files = [[path, *_state_of(file)] for path, file in sorted(self.files.items())]
        return digest([texts, files])


def last_mark(points: Sequence[MetricPoint], names: Collection[str]) -> Mark | None:
    """Return the mark of a whole stream, at its last step; None for an empty one."""
    return Mark(points[-1].step, digest_to(points, points[-1].step, names)) if points else None


def digest_to(points: Iterable[MetricPoint], step: int, names: Collection[str]) -> str:
    """Return the hash of these metrics' points up to and including a step: names, values, times as
    logged."""
    hashed = hashlib.sha256()
    for stretch in stretches(takewhile(lambda point: point.step <= step, points)):
        places = [i for i, name in enumerate(stretch.names) if name in names]
        places.sort(key=stretch.names.__getitem__)
        if not places:
            continue
        ordered = f"{[stretch.names[i] for i in places]}"
        # Little-endian, so that the hash is the same on every machine.
        raw, width = stretch.values[:, places].astype("<f8").tobytes(), 8 * len(places)
        for number, point in enumerate(stretch.points):
            hashed.update(f"{point.step} {milliseconds(point.time)} {ordered}".encode())
            hashed.update(raw[number * width : (number + 1) * width])
    return hashed.hexdigest()[:16]


def constants(points: Iterable[MetricPoint]) -> dict[str, float]:
    """Return name -> value of each metric that has the same value at all of its steps, at least
    two."""
    import numpy as np

    values: dict[str, set[float]] = defaultdict(set)
    counts: dict[str, int] = defaultdict(int)
    for stretch in stretches(points):
        for name, column in zip(stretch.names, stretch.values.T, strict=True):
            values[name].update(np.unique(column)[:2].tolist())
            counts[name] += len(column)
    return {
        name: next(iter(distinct))
        for name, distinct in values.items()
        if len(distinct) == 1 and counts[name] > 1 and all(map(math.isfinite, distinct))
    }


def milliseconds(seconds: float) -> int:
    """Return a time in milliseconds, as MLflow needs it. At least 1, because MLflow reads 0 as
    now."""
    return max(1, round(seconds * 1000)) if math.isfinite(seconds) else 1


def safe_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Return tags in the form that MLflow accepts."""
    return {allowed_name(name): tag_text(value) for name, value in tags.items()}


def safe_params(params: Mapping[str, str]) -> dict[str, str]:
    """Return params in the form that MLflow accepts."""
    return {allowed_name(name): param_text(value) for name, value in params.items()}


def by_step(values: Iterable[tuple[int, str, float]]) -> dict[int, dict[str, float]]:
    """Return step -> name -> mean of the values of that name, steps in order.

    values: (step, name, value).
    """
    groups: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for step, name, value in values:
        groups[step][name].append(value)
    return {
        step: {name: math.fsum(group) / len(group) for name, group in groups[step].items()}
        for step in sorted(groups)
    }


def _state_of(file: Path) -> list[object]:
    try:
        size = file.stat().st_size
        if size > MAX_HASHED_BYTES:
            return [size, file.stat().st_mtime_ns]
        return [size, hashlib.sha256(file.read_bytes()).hexdigest()]
    except OSError:
        return []
