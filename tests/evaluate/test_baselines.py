"""Models before training, scored beside the cells; and `orch eval --watch`."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from orchestrator.cli import common
from orchestrator.cli import eval as command
from orchestrator.evaluate import baselines, evaluate
from orchestrator.pipeline import stages
from orchestrator.records import Baseline, EvaluationSpec, Record
from orchestrator.rundir import RunFolder

Train = Callable[..., Record]
AskFor = Callable[..., EvaluationSpec]
MICRO = Path(__file__).parents[2] / "backends" / "micro"

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


@pytest.fixture
def line(
    folder: RunFolder, train: Train, ask: AskFor, monkeypatch: pytest.MonkeyPatch
) -> SimpleNamespace:
    """`orch eval` on two cells, the second of which ends at the third look."""
    first, second = train(0), train(1, "fir")
    looks: list[str] = []
    made = SimpleNamespace(
        spec=SimpleNamespace(
            evaluation=ask(tasks=ask().tasks[:1]), site=SimpleNamespace(workers=1, options={})
        ),
        cells=(first.cell, second.cell),
        folder=folder,
    )

    def collect_records(_: object) -> list[Record]:
        looks.append("look")
        if len(looks) < 3:
            return [first, Record(second.cell, "running", checkpoints=second.checkpoints)]
        return [first, second]

    monkeypatch.setattr(stages, "with_evaluation", lambda *_, **__: made)
    monkeypatch.setattr(stages, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(common, "open_experiment", lambda *_: made)
    made.chosen = lambda _: made
    monkeypatch.setattr(stages, "collect_records", collect_records)
    made.looks = looks
    return made


@pytest.mark.slow
@pytest.mark.usefixtures("in_process")
def test_watching_scores_what_appears_and_ends_with_the_last_cell(line: SimpleNamespace) -> None:
    done = CliRunner().invoke(
        command.command,
        ["spec.yaml", "--watch", "--json"],
        standalone_mode=False,
    )
    assert done.exception is None, done.exception
    assert done.return_value == 0
    assert len(line.looks) == 3
    assert done.stderr.count("evaluating 1 checkpoints") == 1  # told once, done twice
    assert "waiting for 1 running cells" in done.stderr
    scores = json.loads(done.stdout)
    assert len({score["cell_id"] for score in scores}) == 2
