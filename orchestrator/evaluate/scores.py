"""What a score depends on, and how scores lie on disk.

    cells/<cell>/eval/<task>-<key>.json     the scores of one task at one checkpoint, one seed
    cells/<cell>/eval/<task>-<key>.jsonl    its items: prompt, target, responses, which are right
    cells/<cell>/eval/<task>.divergence-<key>.json, .jsonl    the same for divergences
    baselines/<model>-<key>/eval/           the same for a model before training

`<key>` is a hash of everything in Asked, so a changed task, sampling or checkpoint is a new file
and nothing is ever overwritten by something else.
"""

import hashlib
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field

from orchestrator.errors import CheckpointError
from orchestrator.files import read_object, telling
from orchestrator.identity import digest
from orchestrator.metrics.names import is_divergence
from orchestrator.records import Engine, EvalTask, Sampling, Score
from orchestrator.rundir import CellDir
from orchestrator.settings import Frozen, NonNegativeFloat, PositiveInt

_BIRTH_VALUES: dict[str, object] = {"kind": "accuracy", "reference": ""}
"""Fields of Asked added later, with the value that leaves old names alone."""

SLICE_RESPONSES = 2048
"""Responses between two writes to disk: 64 items of mean@32."""


class ScoreKey(Frozen):
    """One task of one checkpoint with one seed: all that its scores depend on."""

    checkpoint: str
    """Hash of the checkpoint's files."""
    step: int
    task: EvalTask
    task_version: str
    sampling: Sampling
    seed: int
    chat_template: bool
    """Whether the tokenizer's chat template is used, where it has one."""
    harness: str
    """Name and version of what scores."""
    kind: Literal["accuracy", "divergence"] = "accuracy"
    reference: str = ""
    """Of a divergence: hash of the reference policy's files."""

    @property
    def stem(self) -> str:
        """Return the name of its files, without suffix."""
        plain = {
            name: value
            for name, value in self.model_dump().items()
            if name not in _BIRTH_VALUES or value != _BIRTH_VALUES[name]
        }
        mark = "" if self.kind == "accuracy" else f".{self.kind}"
        return f"{self.task.name}{mark}-{digest(plain)}"


class ItemRequest(Frozen):
    """Something asked, with what is needed to answer it."""

    asked: ScoreKey
    task_file: str
    results: str
    """The file its scores belong in; items go beside it."""
    reference: str = ""
    """Of a divergence: the folder of the reference policy."""


class ScoringJob(Frozen):
    """One checkpoint and what is still to be asked of it."""

    cell_id: str
    checkpoint: str
    files: dict[str, tuple[int, int]]
    """checkpoint.Stamp of the checkpoint."""
    asks: tuple[ItemRequest, ...] = Field(strict=False)
    engine: Engine = Engine(name="hf")
    slice_responses: PositiveInt = SLICE_RESPONSES

    @property
    def step(self) -> int:
        return self.asks[0].asked.step


class Result(Frozen):
    """What one ask gave: <task>-<key>.json."""

    asked: ScoreKey
    files: dict[str, tuple[int, int]]
    scores: tuple[Score, ...] = Field(strict=False)
    cpu_seconds: NonNegativeFloat
    versions: dict[str, str]
    """Package -> version, of what generated the responses."""
    items: str = ""
    """Hash of the prompts and targets; empty in results of an older orch."""
    shares: tuple[float, ...] = Field(default=(), strict=False)
    """Share of right responses of each item, in order; empty for divergences."""


SamplingKind = tuple[int, str, int, str]


class StoredScore(NamedTuple):
    """A result on disk, and when it was last asked for."""

    path: Path
    time_ns: int
    result: Result

    @property
    def kind(self) -> "SamplingKind":
        """Return step, task, seed and kind of score: of these, one result is the current one."""
        asked = self.result.asked
        return asked.step, asked.task.name, asked.seed, asked.kind


def stored_scores(cell_dir: CellDir) -> Iterator[StoredScore]:
    """Yield every result of a cell. Raise RunFolderError for a file that is cut or foreign."""
    with telling(cell_dir.evaluations):
        try:
            names = sorted(
                entry.name
                for entry in os.scandir(cell_dir.evaluations)
                if entry.name.endswith(".json") and not entry.name.startswith(".")
            )
        except FileNotFoundError:
            return
    for name in names:
        path = cell_dir.evaluations / name
        result = read_object(Result, path)
        if result is not None:
            yield StoredScore(path, path.stat().st_mtime_ns, result)


def current(cell_dir: CellDir) -> list[Result]:
    """Return the results of a cell as it was last evaluated: by step, then task and seed.

    Where a task was scored more than once at a step (with another sampling, say), only the one
    last asked for is returned.
    """
    newest: dict[SamplingKind, StoredScore] = {}
    for one in stored_scores(cell_dir):
        if one.kind not in newest or newest[one.kind].time_ns < one.time_ns:
            newest[one.kind] = one
    return [newest[kind].result for kind in sorted(newest)]


def read_scores(cell_dir: CellDir) -> list[Score]:
    """Return the scores of the current results of a cell."""
    return [score for result in current(cell_dir) for score in result.scores]


def read_scores_at(path: Path) -> tuple[Score, ...]:
    """Return the scores in one result file; none without the file."""
    result = read_object(Result, path)
    return result.scores if result else ()


def ask_again(one: StoredScore) -> None:
    """Record that this result is the one asked for now."""
    with telling(one.path):
        os.utime(one.path)


# What a checkpoint is, for the cache of scores: the content of the files that make the policy.


_POLICY_FILES = {".safetensors", ".bin", ".json", ".txt", ".model", ".jinja"}

Stamp = dict[str, tuple[int, int]]
"""File name -> bytes, time of last change in nanoseconds: as long as it holds, so does the hash."""


def stamp(path: Path) -> Stamp:
    """Return the files of the policy saved there. Raise CheckpointError if it is no policy."""
    try:
        files = sorted(f for f in path.iterdir() if f.suffix in _POLICY_FILES and f.is_file())
        stats = {file.name: file.stat() for file in files}
    except OSError as error:
        raise CheckpointError(
            f"checkpoint {path} cannot be read: {error.strerror}; `orch retry` trains the cell "
            "again"
        ) from error
    if "config.json" not in stats:
        raise CheckpointError(
            f"checkpoint {path} has no config.json, so it is not in Hugging Face format; "
            "`orch retry` trains the cell again"
        )
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}


def content_hash(path: Path, files: Stamp) -> str:
    """Return a hash of the names and the content of these files."""
    total = hashlib.sha256()
    try:
        for name in files:
            with (path / name).open("rb") as file:
                total.update(
                    f"{name}\n{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode()
                )
    except OSError as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {error.strerror}") from error
    return total.hexdigest()


# Means over the tasks of a domain, as scores of the tasks `in_domain` and `out_of_domain`.


TASK = {"in": "in_domain", "out": "out_of_domain"}

Exams = Mapping[str, Mapping[str, AbstractSet[str]]]
"""Cell id -> domain -> the tasks its mean is over."""


def aggregate(scores: Iterable[Score], exams: Exams | None = None) -> list[Score]:
    """Return, for each checkpoint, seed, sampling, domain and metric, the mean over its tasks.

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
