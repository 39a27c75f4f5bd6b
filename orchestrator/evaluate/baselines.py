"""Models as they are before training, with and without their chat template.

    runs/<experiment>/baselines/<model>-<template>-<id>/eval/    as in a cell's directory

A baseline is a record like any other: step 0, with the base model as its checkpoint. Two that
come to the same (the embedded policies have no chat template) are evaluated once and told twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from orchestrator.errors import CheckpointError
from orchestrator.evaluate.base import base_model
from orchestrator.evaluate.results import read_scores
from orchestrator.fingerprint import digest
from orchestrator.rundir import RunFolder
from orchestrator.types import Baseline, Cell, Checkpoint, Evaluation, Record, Score


@dataclass(frozen=True)
class BaselineFolder(RunFolder):
    """The baselines of an experiment, laid out like its cells."""

    @cached_property
    def cells_path(self) -> Path:
        return self.path / "baselines"


class Asked(NamedTuple):
    """A declared baseline and the record that stands for it at the scale of the site."""

    baseline: Baseline
    record: Record
    note: str


class ScoredBaseline(NamedTuple):
    """A declared baseline with what is on disk of it. `note`: what a reader must know."""

    baseline: Baseline
    cell_id: str
    scores: tuple[Score, ...]
    note: str

    @property
    def name(self) -> str:
        """`qwen2.5-7b, no chat template`."""
        plain = self.baseline.chat_template == "none"
        return f"{self.baseline.model}{', no chat template' if plain else ''}"


def asked(
    evaluation: Evaluation, cells: Sequence[Cell], folder: RunFolder
) -> tuple[list[Asked], list[str]]:
    """The declared baselines, and a sentence for each that cannot be evaluated.

    A baseline takes its model, tasks and backend from the first cell of that model.
    """
    found: list[Asked] = []
    faults: list[str] = []
    home = BaselineFolder(folder.path)
    for baseline in evaluation.baselines:
        cell = next((c for c in cells if (c.declared or c.settings).model.name == baseline.model),
                    None)  # fmt: skip
        if cell is None:  # none of the chosen ones is of this model
            continue
        small = cell.scale == "micro"
        template = cell.settings.model.chat_template if small else baseline.chat_template
        stand_in = _cell(baseline.model, template, cell)
        note = ""
        if small:
            note = f"{cell.settings.model.path} stands for {baseline.model}"
            note += "; it has no chat template" if template == "none" else ""
        record = Record(
            stand_in, "succeeded", checkpoints=(Checkpoint(0, _path(cell, faults, baseline)),),
            directory=home.cell(stand_in).path,
        )  # fmt: skip
        found.append(Asked(baseline, record, note))
    return [one for one in found if one.record.checkpoints[0].path != Path()], faults


def records(asked_for: Sequence[Asked]) -> list[Record]:
    """Each once."""
    return list({one.record.cell.id: one.record for one in asked_for}.values())


def known(evaluation: Evaluation, cells: Sequence[Cell], folder: RunFolder) -> list[ScoredBaseline]:
    """The declared baselines with their scores on disk; no scores where none were made."""
    home = BaselineFolder(folder.path)
    return [
        ScoredBaseline(one.baseline, one.record.cell.id,
                       tuple(read_scores(home.cell(one.record.cell))), one.note)
        for one in asked(evaluation, cells, folder)[0]
    ]  # fmt: skip


def _path(cell: Cell, faults: list[str], baseline: Baseline) -> Path:
    try:
        return base_model(cell.settings.model.path)
    except CheckpointError as error:
        faults.append(f"baseline {baseline.model}: {error}")
        return Path()


def _cell(model: str, template: str, like: Cell) -> Cell:
    """The record's cell: settings of a cell of that model, with the baseline's template."""
    own = like.settings.model.model_copy(update={"chat_template": template})
    settings = like.settings.model_copy(update={"model": own})
    name = digest(["baseline", own.path, template, settings.data.path])
    slug = f"{model}-{'no-template' if template == 'none' else 'template'}"
    return like.model_copy(
        update={"id": name, "slug": slug, "studies": (), "axes": {"model": model},
                "settings": settings}
    )  # fmt: skip
