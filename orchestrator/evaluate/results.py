"""What a score depends on, and how scores lie on disk.

    cells/<cell>/eval/<task>-<key>.json     the scores of one task at one checkpoint, one seed
    cells/<cell>/eval/<task>-<key>.jsonl    its items: prompt, target, responses, which are right

`<key>` is a hash of everything in Asked, so a changed task, sampling or checkpoint is a new file
and nothing is ever overwritten by something else.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from orchestrator.files import read_object, telling
from orchestrator.fingerprint import digest
from orchestrator.rundir import CellDir
from orchestrator.settings import Frozen, NonNegativeFloat
from orchestrator.types import EvalTask, Sampling, Score


class Asked(Frozen):
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

    @property
    def stem(self) -> str:
        """The name of its files, without suffix."""
        return f"{self.task.name}-{digest(self.model_dump())}"


class Ask(Frozen):
    """Something asked, with what is needed to answer it."""

    asked: Asked
    task_file: str
    results: str
    """The file its scores belong in; items go beside it."""


class Job(Frozen):
    """One checkpoint and what is still to be asked of it."""

    cell_id: str
    checkpoint: str
    files: dict[str, tuple[int, int]]
    """checkpoint.Stamp of the checkpoint."""
    asks: tuple[Ask, ...] = Field(strict=False)

    @property
    def step(self) -> int:
        return self.asks[0].asked.step


class Result(Frozen):
    """What one ask gave: <task>-<key>.json."""

    asked: Asked
    files: dict[str, tuple[int, int]]
    scores: tuple[Score, ...] = Field(strict=False)
    cpu_seconds: NonNegativeFloat
    versions: dict[str, str]
    """Package -> version, of what generated the responses."""


class Found(NamedTuple):
    """A result on disk, and when it was last asked for."""

    path: Path
    time_ns: int
    result: Result

    @property
    def kind(self) -> tuple[int, str, int]:
        """Step, task and seed: of these, one result is the current one."""
        return self.result.asked.step, self.result.asked.task.name, self.result.asked.seed


def found(cell_dir: CellDir) -> Iterator[Found]:
    """Every result of a cell. Raises RunFolderError for a file that is cut or foreign."""
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
            yield Found(path, path.stat().st_mtime_ns, result)


def read_scores(cell_dir: CellDir) -> list[Score]:
    """The scores of a cell as it was last evaluated: by step, then task, seed and metric.

    Where a task was scored more than once at a step (with another sampling, say), only the scores
    last asked for are told.
    """
    newest: dict[tuple[int, str, int], Found] = {}
    for one in found(cell_dir):
        if one.kind not in newest or newest[one.kind].time_ns < one.time_ns:
            newest[one.kind] = one
    return [score for kind in sorted(newest) for score in newest[kind].result.scores]


def read_scores_at(path: Path) -> tuple[Score, ...]:
    """The scores in one result file; none if it is not there."""
    result = read_object(Result, path)
    return result.scores if result else ()


def ask_again(one: Found) -> None:
    """Notes that this result is the one asked for now."""
    with telling(one.path):
        os.utime(one.path)
