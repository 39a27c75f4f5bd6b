"""What a score depends on, and how scores lie on disk.

    cells/<cell>/eval/<task>-<key>.json     the scores of one task at one checkpoint, one seed
    cells/<cell>/eval/<task>-<key>.jsonl    its items: prompt, target, responses, which are right
    cells/<cell>/eval/<task>.divergence-<key>.json, .jsonl    the same for divergences
    baselines/<model>-<key>/eval/           the same for a model before training

`<key>` is a hash of everything in Asked, so a changed task, sampling or checkpoint is a new file
and nothing is ever overwritten by something else.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field

from orchestrator.files import read_object, telling
from orchestrator.fingerprint import digest
from orchestrator.rundir import CellDir
from orchestrator.settings import Frozen, NonNegativeFloat, PositiveInt
from orchestrator.types import Engine, EvalTask, Sampling, Score

_BIRTH_VALUES: dict[str, object] = {"kind": "accuracy", "reference": ""}
"""Fields of Asked added later, with the value that leaves old names alone."""

SLICE_RESPONSES = 2048
"""Responses between two writes to disk: 64 items of mean@32."""


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
    kind: Literal["accuracy", "divergence"] = "accuracy"
    reference: str = ""
    """Of a divergence: hash of the reference policy's files."""

    @property
    def stem(self) -> str:
        """The name of its files, without suffix."""
        plain = {
            name: value
            for name, value in self.model_dump().items()
            if name not in _BIRTH_VALUES or value != _BIRTH_VALUES[name]
        }
        mark = "" if self.kind == "accuracy" else f".{self.kind}"
        return f"{self.task.name}{mark}-{digest(plain)}"


class Ask(Frozen):
    """Something asked, with what is needed to answer it."""

    asked: Asked
    task_file: str
    results: str
    """The file its scores belong in; items go beside it."""
    reference: str = ""
    """Of a divergence: the folder of the reference policy."""


class Job(Frozen):
    """One checkpoint and what is still to be asked of it."""

    cell_id: str
    checkpoint: str
    files: dict[str, tuple[int, int]]
    """checkpoint.Stamp of the checkpoint."""
    asks: tuple[Ask, ...] = Field(strict=False)
    engine: Engine = Engine(name="hf")
    slice_responses: PositiveInt = SLICE_RESPONSES

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
    items: str = ""
    """Hash of the prompts and targets; empty in results of an older orch."""
    shares: tuple[float, ...] = Field(default=(), strict=False)
    """Share of right responses of each item, in order; empty for divergences."""


Kind = tuple[int, str, int, str]


class Found(NamedTuple):
    """A result on disk, and when it was last asked for."""

    path: Path
    time_ns: int
    result: Result

    @property
    def kind(self) -> "Kind":
        """Step, task, seed and kind of score: of these, one result is the current one."""
        asked = self.result.asked
        return asked.step, asked.task.name, asked.seed, asked.kind


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


def current(cell_dir: CellDir) -> list[Result]:
    """The results of a cell as it was last evaluated: by step, then task and seed.

    Where a task was scored more than once at a step (with another sampling, say), only the one
    last asked for is told.
    """
    newest: dict[Kind, Found] = {}
    for one in found(cell_dir):
        if one.kind not in newest or newest[one.kind].time_ns < one.time_ns:
            newest[one.kind] = one
    return [newest[kind].result for kind in sorted(newest)]


def read_scores(cell_dir: CellDir) -> list[Score]:
    """The scores of the current results of a cell."""
    return [score for result in current(cell_dir) for score in result.scores]


def read_scores_at(path: Path) -> tuple[Score, ...]:
    """The scores in one result file; none if it is not there."""
    result = read_object(Result, path)
    return result.scores if result else ()


def ask_again(one: Found) -> None:
    """Notes that this result is the one asked for now."""
    with telling(one.path):
        os.utime(one.path)
