"""orch names what keeps scores from being averaged or compared, and averages over no less."""

from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.evaluate import score_index
from orchestrator.records import EvaluationSpec, Record, Sampling
from orchestrator.rundir import RunFolder
from tests.evaluate.data import save, score_key

Train = Callable[..., Record]
AskFor = Callable[..., EvaluationSpec]


@pytest.fixture
def pair(train: Train) -> list[Record]:
    return [train(0), train(1)]


def told(
    folder: RunFolder, records: list[Record], evaluation: EvaluationSpec
) -> tuple[dict[tuple[str, str], float], list[str]]:
    found = score_index([r.cell for r in records], evaluation, folder)
    means = {(s.cell_id, s.task): s.value for s in found.scores if s.task.endswith("_domain")}
    return means, found.faults


def test_whole_exams_have_means_and_no_fault(
    folder: RunFolder, pair: list[Record], ask: AskFor
) -> None:
    for record in pair:
        for task in ask().tasks:
            save(folder.cell(record.cell), score_key(task=task))
    means, faults = told(folder, pair, ask())
    assert not faults
    assert len(means) == 4


def test_a_missing_task_leaves_the_mean_of_its_domain_out(
    folder: RunFolder, pair: list[Record], ask: AskFor
) -> None:
    for task in ask().tasks:
        save(folder.cell(pair[0].cell), score_key(task=task))
        if task.name != "micro_copy":
            save(folder.cell(pair[1].cell), score_key(task=task))
    means, (fault,) = told(folder, pair, ask())
    assert (pair[1].cell.id, "in_domain") in means
    assert (pair[1].cell.id, "out_of_domain") not in means
    assert fault == (
        "micro_copy has no samples of evaluation seed 0 for cell-s1 at step 100: means that need "
        "them are left out. `orch eval` makes them"
    )


@pytest.mark.parametrize(
    ("change", "items", "what"),
    [
        ({"task_version": "v2"}, "same", "task version"),
        ({}, "others", "set of items"),
        ({"sampling": Sampling(min_p=0.5)}, "same", "sampling"),
    ],
)
def test_different_exams_are_told(
    folder: RunFolder,
    pair: list[Record],
    ask: AskFor,
    change: dict[str, Any],
    items: str,
    what: str,
) -> None:
    for task in ask().tasks:
        save(folder.cell(pair[0].cell), score_key(task=task))
        if task.name == "micro_sort":
            other = score_key(task=task, **change)
            save(folder.cell(pair[1].cell), other, items=items)
        else:
            save(folder.cell(pair[1].cell), score_key(task=task))
    _, (fault,) = told(folder, pair, ask())
    assert fault.startswith(f"micro_sort was not one exam for all: its {what} differs (")
    assert "cell-s0" in fault
    assert "cell-s1" in fault
