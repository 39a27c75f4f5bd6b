"""orch names what keeps scores from being averaged or compared, and averages over no less."""

from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.evaluate import score_index
from orchestrator.evaluate.scores import Result, ScoreKey
from orchestrator.records import EvalTask, EvaluationSpec, Record, Sampling, Score
from orchestrator.rundir import RunFolder

Train = Callable[..., Record]
AskFor = Callable[..., EvaluationSpec]


def save(
    folder: RunFolder,
    record: Record,
    task: EvalTask,
    value: float = 0.5,
    *,
    seed: int = 0,
    version: str = "v1",
    items: str = "same",
    sampling: Sampling | None = None,
) -> None:
    sampling = sampling or Sampling()
    asked = ScoreKey(
        checkpoint="c",
        step=100,
        task=task,
        task_version=version,
        sampling=sampling,
        seed=seed,
        chat_template=False,
        harness="lm-eval 0.4.13",
    )
    score = Score(
        cell_id=record.cell.id,
        step=100,
        task=task.name,
        domain=task.domain,
        metric="mean@4",
        value=value,
        stderr=0.1,
        num_items=16,
        repeats=4,
        eval_seed=seed,
        sampling=sampling,
        task_version=version,
    )
    result = Result(asked=asked, files={}, scores=(score,), cpu_seconds=0, versions={}, items=items)
    path = folder.cell(record.cell).evaluations / f"{asked.stem}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(result.model_dump_json().replace('"value":null', '"value":NaN'))


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
            save(folder, record, task)
    means, faults = told(folder, pair, ask())
    assert not faults
    assert len(means) == 4


def test_a_missing_task_leaves_the_mean_of_its_domain_out(
    folder: RunFolder, pair: list[Record], ask: AskFor
) -> None:
    for task in ask().tasks:
        save(folder, pair[0], task)
        if task.name != "micro_copy":
            save(folder, pair[1], task)
    means, (fault,) = told(folder, pair, ask())
    assert (pair[1].cell.id, "in_domain") in means
    assert (pair[1].cell.id, "out_of_domain") not in means
    assert fault == (
        "micro_copy has no samples of evaluation seed 0 for cell-s1 at step 100: means that need "
        "them are left out. `orch eval` makes them"
    )


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"version": "v2"}, "task version"),
        ({"items": "others"}, "set of items"),
        ({"sampling": Sampling(min_p=0.5)}, "sampling"),
    ],
)
def test_different_exams_are_told(
    folder: RunFolder, pair: list[Record], ask: AskFor, change: dict[str, Any], what: str
) -> None:
    for task in ask().tasks:
        save(folder, pair[0], task)
        save(folder, pair[1], task, **(change if task.name == "micro_sort" else {}))
    _, (fault,) = told(folder, pair, ask())
    assert fault.startswith(f"micro_sort was not one exam for all: its {what} differs (")
    assert "cell-s0" in fault
    assert "cell-s1" in fault
