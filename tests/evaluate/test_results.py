"""Scores on disk: what names a result, which one is current, and which may be averaged."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.evaluate import read_scores, score_index
from orchestrator.evaluate.scores import current
from orchestrator.records import EvalTask, EvaluationSpec, Record, Sampling
from orchestrator.rundir import CellDir, RunFolder
from tests.evaluate.data import save, score_key

ASKED = score_key(checkpoint="c0ffee")


def test_a_name_is_the_same_for_ever() -> None:
    """It is a digest of all that the score depends on."""
    assert ASKED.stem == "micro_sort-82822e51c2ec"


def test_scores_come_by_step_and_task(tmp_path: Path) -> None:
    cell_dir = CellDir(tmp_path / "cell-1")
    copy = EvalTask(name="micro_copy", domain="out", repeats=4)
    for time_ns, (step, task) in enumerate(
        [(100, ASKED.task), (20, ASKED.task), (100, copy)], start=1
    ):
        save(cell_dir, ASKED.model_copy(update={"step": step, "task": task}), time_ns=time_ns)
    found = [(score.step, score.task) for score in read_scores(cell_dir)]
    assert found == [(20, "micro_sort"), (100, "micro_copy"), (100, "micro_sort")]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text[:40], "not a JSON object"),
        (lambda _: "", "not a JSON object"),
        (lambda text: text.replace('"value":0.5', '"value":"x"'), "scores.0.value"),
        (lambda text: text.replace('"cell_id":"1"', '"cell_id":"2"'), "scores of another cell"),
        (lambda text: text.replace('"step":100', '"step":99', 1), "of another step or task"),
        (lambda text: text.replace('"shares":[]', '"shares":[0.5,NaN]'), "outside 0 to 1"),
        (lambda text: text.replace('"shares":[]', '"shares":[0.5]'), "another number of items"),
    ],
)
def test_a_broken_result_is_told_and_costs_itself_alone(
    tmp_path: Path, change: Callable[[str], str], says: str
) -> None:
    cell_dir = CellDir(tmp_path / "cell-1")
    save(cell_dir, ASKED.model_copy(update={"step": 20}), 0.25)
    path = save(cell_dir, ASKED, time_ns=2)
    path.write_text(change(path.read_text()))
    faults: list[str] = []
    assert [result.asked.step for result in current(cell_dir, faults)] == [20]
    (fault,) = faults
    assert str(path) in fault
    assert says in fault
    assert fault.endswith("`orch eval` makes them again")
    assert [score.value for score in read_scores(cell_dir)] == [0.25]


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
