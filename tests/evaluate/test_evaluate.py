"""evaluate, with the real harness in its own processes; models before training beside the cells."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.errors import CheckpointError, EnvironmentFault
from orchestrator.evaluate import (
    EvaluationEvent,
    UnscoredError,
    baselines,
    evaluate,
    read_scores,
    run,
)
from orchestrator.records import Baseline, Checkpoint, EvaluationSpec, Record, Sampling, Score
from orchestrator.rundir import RunFolder
from tests.cluster.daemons import is_alive

Train = Callable[..., Record]
AskFor = Callable[..., EvaluationSpec]


def files(folder: RunFolder) -> dict[str, tuple[int, int]]:
    found = (path for path in folder.path.rglob("eval/*"))
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in found}


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# ------------------------------------------------------------------ without the harness


def test_a_checkpoint_that_cannot_be_exported_is_told(
    folder: RunFolder, train: Train, ask: AskFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "work", None)  # a process that is started fails
    record = train()
    foreign = Record(
        record.cell, "succeeded", checkpoints=(Checkpoint(1, Path("/x"), needs_export=True),)
    )
    with pytest.raises(CheckpointError, match="/x is not there"):
        evaluate([foreign], ask(), folder)


# ------------------------------------------------------------------ with it


@pytest.mark.slow
def test_scores_items_a_second_time_and_the_same_among_others(
    folder: RunFolder,
    train: Train,
    ask: AskFor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    from_here_in_process: Callable[[], None],
) -> None:
    records = [train(0), train(1, "fir", steps=(50, 100))]
    events: list[EvaluationEvent] = []
    scores = evaluate(records, ask(), folder, workers=2, on_event=events.append)

    assert [(event.done, event.total) for event in events] == [(0, 2), (1, 2), (2, 2)]
    assert [(s.cell_id, s.step, s.task, s.metric) for s in scores] == [
        (record.cell.id, 100, task.name, metric)
        for record in records
        for task in ask().tasks
        for metric in ("mean@4", "pass@4", "maj@4", "distinct@4")
    ]
    for score in scores:
        record = next(r for r in records if r.cell.id == score.cell_id)
        lines = (record.directory / score.items_path).read_text(encoding="utf-8").splitlines()
        items = [json.loads(line) for line in lines]
        assert len(items) == score.num_items == 16
        assert {len(item["responses"]) for item in items} == {4}
        if score.metric == "mean@4":
            correct = [right for item in items for right in item["correct"]]
            assert score.value == pytest.approx(sum(correct) / len(correct))
        assert score.harness.startswith("lm-eval 0.")
        assert score.task_version
    for record in records:
        on_disk = read_scores(folder.cell(record.cell))
        assert sorted(on_disk, key=repr) == sorted(
            (s for s in scores if s.cell_id == record.cell.id), key=repr
        )

    before = files(folder)
    monkeypatch.setattr(run, "work", None)
    assert evaluate(records, ask(), folder, on_event=events.append) == scores
    assert files(folder) == before
    assert len(events) == 3

    from_here_in_process()
    elsewhere = RunFolder.of(tmp_path, "elsewhere", "micro")
    elsewhere.open()
    others = [records[1], train(2, "hazel"), records[0]]
    among = {(s.cell_id, s.task, s.metric): s.value for s in evaluate(others, ask(), elsewhere)}
    assert len(among) == 48
    assert all(score.value == among[score.cell_id, score.task, score.metric] for score in scores)


@pytest.mark.slow
@pytest.mark.usefixtures("in_process")
def test_what_changes_is_scored_anew_and_what_comes_back_is_remembered(
    folder: RunFolder, train: Train, ask: AskFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = train()
    cell_dir = folder.cell(record.cell)
    tasks = ask().tasks[:1]

    def means(scores: list[Score]) -> list[tuple[int, float, float]]:
        return [(s.eval_seed, s.sampling.min_p, s.value) for s in scores if s.metric == "mean@4"]

    first = evaluate([record], ask(tasks=tasks), folder, workers=1)
    greedy = ask(tasks=tasks, sampling=Sampling(min_p=1.0), seeds=(0, 1))
    second = evaluate([record], greedy, folder, workers=1)
    # greedy decoding: neither seeds nor repeats make a difference, so one response is made
    assert [(seed, min_p) for seed, min_p, _ in means(second)] == [(0, 1.0)]
    assert {score.repeats for score in second} == {1}
    assert means(read_scores(cell_dir)) == means(second)

    for file in cell_dir.evaluations.iterdir():  # both within one tick of the file system's clock
        os.utime(file, ns=(time.time_ns(), 1_790_000_000_000_000_000))
    monkeypatch.setattr(run, "work", None)
    for wanted, scores in ((ask(tasks=tasks), first), (greedy, second), (ask(tasks=tasks), first)):
        assert evaluate([record], wanted, folder) == scores
        assert means(read_scores(cell_dir))[0] == means(scores)[0]


@pytest.mark.slow
def test_a_checkpoint_cut_in_half_is_told_and_the_others_go_on(
    folder: RunFolder, train: Train, ask: AskFor
) -> None:
    cut, whole = train(0), train(1)
    weights = cut.checkpoints[0].path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:50_000])
    gone = train(2)
    (gone.checkpoints[0].path / "config.json").unlink()
    events: list[EvaluationEvent] = []
    with pytest.raises(UnscoredError) as caught:
        evaluate([cut, whole, gone], ask(), folder, workers=1, on_event=events.append)
    assert {score.cell_id for score in caught.value.scores} == {whole.cell.id}
    assert len(caught.value.scores) == 16
    told = str(caught.value)
    assert told.startswith("2 checkpoints could not be scored\n")
    assert "cell-s0 at step 100: checkpoint" in told
    assert "cut in half?" in told
    assert "cell-s2 at step 100" in told
    assert "no config.json" in told
    assert "Traceback" not in told
    assert [(event.done, event.total) for event in events] == [(0, 2), (1, 2), (2, 2)]
    assert not folder.cell(cut.cell).evaluations.exists()


@pytest.mark.slow
def test_a_killed_process_loses_nothing(
    folder: RunFolder, train: Train, ask: AskFor, from_here_in_process: Callable[[], None]
) -> None:
    """One of the processes that score is killed, then the one that holds them."""
    records = [train(seed) for seed in range(5)]
    evaluation = ask(repeats=6, max_items=256, tasks=ask(6, 256).tasks[:2])
    strangers = set(children(os.getpid()))  # this process may hold children of other tests
    seen: list[int] = []

    def kill(whom: Callable[[int], int]) -> Callable[[EvaluationEvent], None]:
        def on_event(event: EvaluationEvent) -> None:
            if event.done == 1:
                (holder,) = set(children(os.getpid())) - strangers
                seen.extend([holder, *children(holder)])
                os.kill(whom(holder), signal.SIGKILL)

        return on_event

    one_of_two = kill(lambda holder: children(holder)[0])
    with pytest.raises(UnscoredError, match="was killed") as caught:
        evaluate(records, evaluation, folder, workers=2, on_event=one_of_two)
    assert {score.cell_id for score in caught.value.scores}
    with pytest.raises(EnvironmentFault, match="ended with code -9"):
        evaluate(records, evaluation, folder, workers=1, on_event=kill(lambda holder: holder))
    kept = files(folder)
    from_here_in_process()
    scores = evaluate(records, evaluation, folder, workers=2)
    assert len({(s.cell_id, s.task) for s in scores}) == 10
    assert kept.items() <= files(folder).items()
    assert len(seen) == 5
    assert not [pid for pid in seen if is_alive(pid)]


@pytest.mark.slow
def test_a_bug_keeps_its_traceback(
    folder: RunFolder, train: Train, ask: AskFor, stand_in: SimpleNamespace, tmp_path: Path
) -> None:
    stand_in.tasks_dir = tmp_path / "tasks"
    stand_in.tasks_dir.mkdir()
    (stand_in.tasks_dir / "micro_sort.yaml").write_text("task: micro_sort\noutput_type: nonsense\n")
    evaluation = ask(tasks=ask().tasks[:1])
    with pytest.raises(RuntimeError, match=r"(?s)Traceback.*nonsense"):
        evaluate([train()], evaluation, folder, workers=1)


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
