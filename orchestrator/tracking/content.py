"""What one MLflow run should hold, worked out from what is on disk. Pure but for reading files."""

import hashlib
import json
import math
import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from orchestrator.fingerprint import digest
from orchestrator.tracking.names import allowed_name, param_text, tag_text
from orchestrator.types import MetricPoint

WHOLE_HASH_BYTES = 8 << 20
"""Files up to this size are compared by content, larger ones by size and time of change."""

Status = str
"""RUNNING, SCHEDULED, FINISHED, FAILED or KILLED: MLflow's words."""


class Mark(NamedTuple):
    """How far a stream of points goes, and the hash of all of them up to there."""

    step: int
    digest: str


class Marks(NamedTuple):
    """What of a run's content is in MLflow. As JSON it is the value of a tag."""

    curves: Mark | None = None
    scores: Mark | None = None
    artifacts: str = ""
    tags: tuple[str, ...] = ()
    """Names of the tags that are ours; others on the run are a person's."""

    @property
    def text(self) -> str:
        return json.dumps(self._asdict(), separators=(",", ":"))

    @classmethod
    def of(cls, text: str | None) -> "Marks | None":
        """None for no tag, or for one that is not ours."""
        try:
            plain = json.loads(text or "null")
            curves, scores = (
                None
                if plain[stream] is None
                else Mark(int(plain[stream][0]), str(plain[stream][1]))
                for stream in ("curves", "scores")
            )
            return cls(curves, scores, str(plain["artifacts"]), tuple(plain["tags"]))
        except (ValueError, KeyError, TypeError, IndexError):
            return None


class Dataset(NamedTuple):
    """A data set as MLflow knows them."""

    name: str
    digest: str
    source_type: str
    source: str
    """JSON, with `uri` or `path`."""


class Model(NamedTuple):
    """An evaluated checkpoint, in MLflow's list of models."""

    key: str
    """`cell/<id>/step/<n>`."""
    name: str
    step: int
    tags: Mapping[str, str]
    params: Mapping[str, str]
    scores: str
    """The hash of its scores."""


@dataclass(frozen=True)
class Content:
    """One MLflow run. Times in milliseconds; names of metrics are orch's own."""

    key: str
    """`summary`, `study/<name>` or `cell/<id>`: the same for ever, once in an experiment."""
    name: str
    status: Status
    started: int
    ended: int | None
    tags: Mapping[str, str]
    params: Mapping[str, str] = field(default_factory=dict)
    curves: Sequence[MetricPoint] = ()
    scores: Sequence[MetricPoint] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    """Artifact path -> text."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """Artifact path -> file."""
    parent: str = ""
    """Key of the parent run."""
    dataset: Dataset | None = None
    """What it was trained on."""
    models: Sequence[Model] = ()
    """Its evaluated checkpoints; their metrics are the scores of their step."""

    @property
    def cell_id(self) -> str | None:
        """The cell this run is of; None for a study and the summary."""
        kind, _, name = self.key.partition("/")
        return name if kind == "cell" else None

    @cached_property
    def marks(self) -> Marks:
        """What MLflow holds once all of this is there."""
        artifacts = self._artifacts_digest() if self.texts or self.files else ""
        return Marks(last_mark(self.curves), last_mark(self.scores), artifacts, tuple(self.tags))

    @cached_property
    def digest(self) -> str:
        """Changes whenever anything in here does."""
        return digest([
            self.key, self.name, self.status, self.started, self.ended, self.parent,
            dict(self.tags), dict(self.params), self.marks.text, self.dataset, list(self.models),
        ])  # fmt: skip

    def _artifacts_digest(self) -> str:
        texts = [[path, text] for path, text in sorted(self.texts.items())]
        files = [[path, *_state_of(file)] for path, file in sorted(self.files.items())]
        return digest([texts, files])


def last_mark(points: Sequence[MetricPoint]) -> Mark | None:
    """The mark of a whole stream, by step."""
    return Mark(points[-1].step, digest_to(points, points[-1].step)) if points else None


def digest_to(points: Iterable[MetricPoint], step: int) -> str:
    """The hash of all points up to and including a step: names, values and times as logged."""
    hashed = hashlib.sha256()
    for point in points:
        if point.step > step:
            break
        names = sorted(point.values)
        hashed.update(f"{point.step} {milliseconds(point.time)} {names}".encode())
        hashed.update(struct.pack(f"<{len(names)}d", *(point.values[name] for name in names)))
    return hashed.hexdigest()[:16]


def milliseconds(seconds: float) -> int:
    """MLflow's time. At least 1: MLflow takes 0 for now."""
    return max(1, round(seconds * 1000)) if math.isfinite(seconds) else 1


def safe_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Tags as MLflow takes them."""
    return {allowed_name(name): tag_text(value) for name, value in tags.items()}


def safe_params(params: Mapping[str, str]) -> dict[str, str]:
    """Params as MLflow takes them."""
    return {allowed_name(name): param_text(value) for name, value in params.items()}


def by_step(values: Iterable[tuple[int, str, float]]) -> dict[int, dict[str, float]]:
    """(step, name, value) -> step -> name -> the mean over values of that name, steps in order."""
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
        if size > WHOLE_HASH_BYTES:
            return [size, file.stat().st_mtime_ns]
        return [size, hashlib.sha256(file.read_bytes()).hexdigest()]
    except OSError:
        return []
