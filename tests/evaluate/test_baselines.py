"""Models before training, scored beside the cells."""

from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.evaluate import baselines, evaluate
from orchestrator.records import Baseline, EvaluationSpec, Record
from orchestrator.rundir import RunFolder

Train = Callable[..., Record]
AskFor = Callable[..., EvaluationSpec]

BOTH = (
    Baseline(model="elder", chat_template="default"),
    Baseline(model="elder", chat_template="none"),
)


def test_a_base_model_that_is_missing_is_told(folder: RunFolder, train: Train, ask: AskFor) -> None:
    cell = train().cell
    own = cell.settings.model.model_copy(update={"path": "micro:zinc"})
    other = cell.model_copy(update={"settings": cell.settings.model_copy(update={"model": own})})
    asked, (fault,) = baselines.declared_baselines(ask(baselines=BOTH[:1]), [other], folder)
    assert [one.record.checkpoints for one in asked] == [()], "its scores are read, none is made"
    assert fault.startswith("baseline elder: backend 'micro' ships no policy")


@pytest.mark.slow
@pytest.mark.usefixtures("in_process")
def test_baselines_are_scored_once_and_told_twice(
    folder: RunFolder, train: Train, ask: AskFor
) -> None:
    record = train(policy="hazel")
    evaluation = ask(baselines=BOTH, tasks=ask().tasks[:2])
    asked, _ = baselines.declared_baselines(evaluation, [record.cell], folder)
    started: list[int] = []
    scores = evaluate(
        [record],
        evaluation,
        folder,
        baselines=baselines.records(asked),
        workers=1,
        on_event=lambda event: started.append(event.total),
    )
    told = baselines.scored_baselines(evaluation, [record.cell], folder)
    assert [one.name for one in told] == ["elder", "elder, no chat template"]
    assert {score.step for one in told for score in one.scores} == {0}
    assert len(told[0].scores) == 2 * 4
    assert len(scores) == 2 * 4 + len({s for one in told for s in one.scores})
    mine = {(s.task, s.metric): s.value for s in scores if s.cell_id == record.cell.id}
    assert {(s.task, s.metric): s.value for s in told[0].scores} != mine
    assert sorted(path.name for path in (folder.path / "baselines").iterdir()) == sorted(
        {Path(one.record.directory).name for one in asked}
    )
    assert folder.cells() == [folder.cell(record.cell)]  # no baseline is taken for a cell
