"""The folder of a model before training: the reference policy of its cells, and a baseline."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from orchestrator import plugins
from orchestrator.errors import CheckpointError, EnvironmentFault
from orchestrator.evaluate.scores import read_scores
from orchestrator.identity import digest
from orchestrator.library.model_size import hub_cache, hub_folder
from orchestrator.records import (
    Baseline,
    Cell,
    Checkpoint,
    EvalTask,
    EvaluationSpec,
    Record,
    Score,
)
from orchestrator.rundir import RunFolder
from orchestrator.settings import Settings
from orchestrator.spec import select


def base_model(path: str) -> Path:
    """Return the Hugging Face directory of a spec's `model.path`.

    The path is a folder, a policy that ships with a backend (such as `micro:elder`), or a model of
    the hub in this machine's cache. If it is not on this machine, raise CheckpointError with the
    way to get it.
    """
    try:
        shipped = plugins.shipped_policy(path)
    except EnvironmentFault as fault:
        raise CheckpointError(str(fault)) from None
    if shipped is not None:
        return shipped
    folder = hub_folder(path, hub_cache(os.environ))
    if folder is None or not (folder / "config.json").is_file():
        raise CheckpointError(
            f"base model {path} is not on this machine, neither as a folder nor in the hub's "
            f"cache; fetch it where there is a network (hf download {path}), or name a folder in "
            "model.path"
        )
    return folder.absolute()


# Models as they are before training, with and without their chat template.
#
#     runs/<experiment>/baselines/<model>-<template>-<id>/eval/    as in a cell's directory
#
# A baseline is a record like any other: step 0, with the base model as its checkpoint. Two that
# come to the same (the embedded policies have no chat template) are evaluated once and shown twice.


@dataclass(frozen=True)
class BaselineFolder(RunFolder):
    """The baselines of an experiment, laid out like its cells."""

    @cached_property
    def cells_path(self) -> Path:
        """Return the folder that holds a folder for each baseline."""
        return self.path / "baselines"


class DeclaredBaseline(NamedTuple):
    """A declared baseline, and the record that represents it at the scale of the site.

    One for each set of tasks that the cells of its model have: tasks may follow the data.
    """

    baseline: Baseline
    record: Record
    note: str


class ScoredBaseline(NamedTuple):
    """A declared baseline with its scores on disk. `note`: a remark for readers of the report."""

    baseline: Baseline
    cell_id: str
    scores: tuple[Score, ...]
    note: str
    data: str = ""
    """Name of the training data of the cells whose tasks it has."""

    @property
    def name(self) -> str:
        """Return a baseline's name for people: `qwen2.5-7b, no chat template`."""
        plain = self.baseline.chat_template == "none"
        return f"{self.baseline.model}{', no chat template' if plain else ''}"


def declared_baselines(
    evaluation: EvaluationSpec, cells: Sequence[Cell], folder: RunFolder
) -> tuple[list[DeclaredBaseline], list[str]]:
    """Return the declared baselines, and a sentence for each that cannot be evaluated here.

    Such a baseline has no checkpoint. A baseline takes its model, tasks and backend from the first
    cell of that model, and from the first with other tasks.
    """
    declared: list[DeclaredBaseline] = []
    faults: list[str] = []
    home = BaselineFolder(folder.path)
    first: dict[tuple[str, tuple[EvalTask, ...]], Cell] = {}
    for cell in cells if evaluation.baselines else ():
        tasks = tuple(select.wanted(evaluation.tasks, cell))
        first.setdefault((_declared(cell).model.name, tasks), cell)
    pairs = [
        (one, cell)
        for one in evaluation.baselines
        for (model, _), cell in first.items()
        if model == one.model
    ]
    for baseline, cell in pairs:
        path, small = cell.settings.model.path, cell.scale == "micro"
        template = cell.settings.model.chat_template if small else baseline.chat_template
        note = f"{path} stands for {baseline.model}" if small else ""
        note += "; it has no chat template" if small and template == "none" else ""
        checkpoints: tuple[Checkpoint, ...] = ()
        try:
            checkpoints = (Checkpoint(0, base_model(path)),)
        except CheckpointError as error:
            faults.append(f"baseline {baseline.model}: {error}")
        stand_in = _cell(baseline.model, template, cell)
        directory = home.cell(stand_in).path
        record = Record(stand_in, "succeeded", checkpoints=checkpoints, directory=directory)
        declared.append(DeclaredBaseline(baseline, record, note))
    return declared, faults


def _declared(cell: Cell) -> Settings:
    return cell.declared or cell.settings


def records(asked_for: Sequence[DeclaredBaseline]) -> list[Record]:
    """Return the records of the baselines, each once."""
    return list({one.record.cell.id: one.record for one in asked_for}.values())


def scored_baselines(
    evaluation: EvaluationSpec, cells: Sequence[Cell], folder: RunFolder
) -> list[ScoredBaseline]:
    """Return the declared baselines with their scores on disk; without scores if none exist."""
    home = BaselineFolder(folder.path)
    return [
        ScoredBaseline(
            one.baseline,
            one.record.cell.id,
            tuple(read_scores(home.cell(one.record.cell))),
            one.note,
            _declared(one.record.cell).data.name,
        )
        for one in declared_baselines(evaluation, cells, folder)[0]
    ]


def _cell(model: str, template: str, like: Cell) -> Cell:
    """Return the record's cell: settings of a cell of that model, with the baseline's template."""
    own = like.settings.model.model_copy(update={"chat_template": template})
    settings = like.settings.model_copy(update={"model": own})
    name = digest(["baseline", own.path, template, settings.data.path])
    slug = f"{model}-{'no-template' if template == 'none' else 'template'}"
    return like.model_copy(
        update={
            "id": name,
            "slug": slug,
            "studies": (),
            "axes": {"model": model},
            "settings": settings,
        }
    )
