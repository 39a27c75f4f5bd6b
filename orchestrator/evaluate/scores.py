"""The key of a score, and the files of scores on disk.

    cells/<cell>/eval/<task>-<key>.json     the scores of one task at one checkpoint, one seed
    cells/<cell>/eval/<task>-<key>.jsonl    its items: prompt, target, responses, which are right
    cells/<cell>/eval/<task>.divergence-<key>.json, .jsonl    the same for divergences
    baselines/<model>-<key>/eval/           the same for a model before training

`<key>` is a hash of everything in ScoreKey. So a changed task, sampling or checkpoint gives a new
file, and never overwrites another score.
"""

import math
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field

from orchestrator.errors import RunFolderError
from orchestrator.files import read_object, telling
from orchestrator.identity import digest
from orchestrator.metrics.names import is_divergence
from orchestrator.records import Engine, EvalTask, Sampling, Score
from orchestrator.rundir import CellDir
from orchestrator.settings import Frozen, NonNegativeFloat, PositiveInt

SLICE_RESPONSES = 2048
"""Responses between two writes to disk: 64 items of mean@32."""


class ScoreKey(Frozen):
    """One task of one checkpoint with one seed: everything on which its scores depend."""

    checkpoint: str
    """Hash of the policy: checkpoint.content_hash."""
    step: int
    task: EvalTask
    task_version: str
    sampling: Sampling
    seed: int
    chat_template: bool
    """True: use the tokenizer's chat template, if it has one."""
    harness: str
    """Name and version of the harness that scores."""
    kind: Literal["accuracy", "divergence"] = "accuracy"
    reference: str = ""
    """Only for a divergence: the hash of the reference policy."""

    @property
    def stem(self) -> str:
        """Return the name of the score's files, without suffix."""
        plain = self.model_dump()
        del plain["task"]["when"]  # to which cells it is asked, and not what
        if self.kind == "accuracy":
            del plain["kind"], plain["reference"]
        mark = "" if self.kind == "accuracy" else f".{self.kind}"
        return f"{self.task.name}{mark}-{digest(plain)}"


class ItemRequest(Frozen):
    """A score to make, and the data that this needs."""

    asked: ScoreKey
    task_file: str
    """A task of orch's; empty for a task of the harness."""
    results: str
    """The file for its scores. The file of its items is next to it."""
    reference: str = ""
    """Only for a divergence: the folder of the reference policy."""
    harness_task: str = ""
    """A task of the harness or of a user's own YAML, as the spec names it."""


class ScoringJob(Frozen):
    """One checkpoint and the scores to make for it."""

    cell_id: str
    checkpoint: str
    files: dict[str, tuple[int, int]]
    """checkpoint.Stamp of the checkpoint."""
    asks: tuple[ItemRequest, ...] = Field(strict=False)
    engine: Engine = Engine(name="hf")
    slice_responses: PositiveInt = SLICE_RESPONSES

    @property
    def step(self) -> int:
        """Return the train step of the checkpoint."""
        return self.asks[0].asked.step


class Result(Frozen):
    """The result of one request: <task>-<key>.json."""

    asked: ScoreKey
    files: dict[str, tuple[int, int]]
    scores: tuple[Score, ...] = Field(strict=False)
    cpu_seconds: NonNegativeFloat
    versions: dict[str, str]
    """Package -> version, of the software that generated the responses. `kernels`: those of the
    embedded trainer, if they did."""
    items: str = ""
    """Hash of the prompts and targets."""
    shares: tuple[float, ...] = Field(default=(), strict=False)
    """Share of right responses of each item, in order; empty for divergences."""


SamplingKind = tuple[int, str, int, str]


class StoredScore(NamedTuple):
    """A result on disk, and when it was last requested."""

    path: Path
    time_ns: int
    result: Result

    @property
    def kind(self) -> "SamplingKind":
        """Return step, task, seed and type of score. For each such kind, one result is the current
        one."""
        score_key = self.result.asked
        return score_key.step, score_key.task.name, score_key.seed, score_key.kind


def stored_scores(cell_dir: CellDir, faults: list[str] | None = None) -> Iterator[StoredScore]:
    """Yield every result of a cell. Leave out files that are cut or foreign, and name them in
    `faults`."""
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
        try:
            result = read_object(Result, path)
            if result is None:
                continue
            _check(result, cell_dir, path)
            with telling(path):
                yield StoredScore(path, path.stat().st_mtime_ns, result)
        except (RunFolderError, FileNotFoundError) as error:
            if faults is not None:
                faults.append(f"{error}. Its scores are left out; `orch eval` makes them again")


def _check(result: Result, cell_dir: CellDir, path: Path) -> None:
    """Raise RunFolderError for a result of another cell, or one that contradicts itself."""
    score_key = result.asked
    wrong = ""
    if any(score.cell_id != cell_dir.id for score in result.scores):
        wrong = "it holds scores of another cell"
    elif any((s.step, s.task) != (score_key.step, score_key.task.name) for s in result.scores):
        wrong = "it holds scores of another step or task than it was asked for"
    elif not all(math.isfinite(score.value) for score in result.scores):
        wrong = "a value is not a finite number"
    elif not all(0 <= share <= 1 for share in result.shares):
        wrong = "a share of right answers lies outside 0 to 1"
    elif result.shares and any(s.num_items != len(result.shares) for s in result.scores):
        wrong = "its scores are over another number of items than it holds"
    if wrong:
        raise RunFolderError(f"{path}: {wrong}")


def current(cell_dir: CellDir, faults: list[str] | None = None) -> list[Result]:
    """Return the results of a cell as it was last evaluated: by step, then task and seed.

    If a task was scored more than once at a step (with another sampling, for example), only the
    result that was requested last is returned. Files that cannot be read are left out and named in
    `faults`.
    """
    newest: dict[SamplingKind, StoredScore] = {}
    for one in stored_scores(cell_dir, faults):
        if one.kind not in newest or newest[one.kind].time_ns < one.time_ns:
            newest[one.kind] = one
    return [newest[kind].result for kind in sorted(newest)]


def read_scores(cell_dir: CellDir) -> list[Score]:
    """Return the scores of the current results of a cell, without those that cannot be read."""
    return [score for result in current(cell_dir) for score in result.scores]


def read_scores_at(path: Path) -> tuple[Score, ...]:
    """Return the scores in one result file; none if the file does not exist."""
    result = read_object(Result, path)
    return result.scores if result else ()


def recall(one: StoredScore, on_disk: Iterable[StoredScore]) -> tuple[Score, ...]:
    """Return the scores of a result, and record it as the one of its kind requested last."""
    rivals = [each.time_ns for each in on_disk if each.kind == one.kind and each.path != one.path]
    if rivals and max(rivals) >= one.time_ns:
        # A file system's clock ticks every few milliseconds: two files may have one time.
        moment = max(time.time_ns(), max(rivals) + 1)
        with telling(one.path):
            os.utime(one.path, ns=(moment, moment))
    return one.result.scores


# Means over the tasks of a domain, as scores of the tasks `in_domain` and `out_of_domain`.


TASK = {"in": "in_domain", "out": "out_of_domain"}

Exams = Mapping[str, Mapping[str | None, AbstractSet[str]]]
"""Cell id -> domain -> the tasks its mean is over."""


def aggregate(scores: Iterable[Score], exams: Exams | None = None) -> list[Score]:
    """Return the mean over tasks for each checkpoint, seed, sampling, domain and metric.

    Each task has the same weight, whatever its number of items. The standard error is that of a
    mean of n independent estimates, sqrt(sum se^2) / n: tasks are fixed, and only their items vary.
    A mean is left out if a task of the cell's exam is missing, if a value is not finite, for
    divergences and for tasks without a domain. Without `exams`, the mean is over the tasks that
    exist.
    """
    groups = defaultdict(list)
    for score in scores:
        if score.domain is not None and not is_divergence(score.metric):
            of = (score.cell_id, score.step, score.eval_seed, score.sampling, score.domain)
            groups[of, score.metric].append(score)
    return [_mean(group) for group in groups.values() if _is_whole(group, exams)]


def _is_whole(group: list[Score], exams: Exams | None) -> bool:
    exam = (exams or {}).get(group[0].cell_id, {}).get(group[0].domain)
    tasks = {score.task for score in group}
    return all(math.isfinite(score.value) for score in group) and exam in (None, tasks)


def _mean(group: list[Score]) -> Score:
    count = len(group)
    errors = [score.stderr for score in group]
    known = [error for error in errors if error is not None]
    seconds = [score.seconds for score in group if score.seconds is not None]
    return group[0].model_copy(
        update={
            "task": TASK[group[0].domain or "in"],
            "value": math.fsum(score.value for score in group) / count,
            "stderr": math.hypot(*known) / count if len(known) == count else None,
            "num_items": sum(score.num_items for score in group),
            "task_version": digest(sorted([score.task, score.task_version] for score in group)),
            "seconds": math.fsum(seconds) if seconds else None,
            "items_path": "",
        }
    )
