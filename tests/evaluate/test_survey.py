"""What is asked of a checkpoint, of whom, and with which engine."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from orchestrator.evaluate import run
from orchestrator.evaluate.scores import ScoringJob
from orchestrator.evaluate.survey import Survey, divergence_tasks, seeds_of, tasks_of
from orchestrator.evaluate.task_files import OWN_TASKS
from orchestrator.records import (
    DivergenceRequest,
    DivergenceTask,
    Engine,
    EvalTask,
    EvaluationSpec,
    Record,
    Sampling,
    Site,
)
from orchestrator.rundir import RunFolder

Train = Callable[..., Record]
AskFor = Callable[..., EvaluationSpec]

FIG12 = DivergenceRequest(
    tasks=(
        DivergenceTask(name="math_test", domain="in"),
        DivergenceTask(name="mmlu_college_biology", domain="out"),
    )
)


@pytest.fixture
def full(train: Train, stand_in: SimpleNamespace) -> Record:
    """A cell at full scale, with two checkpoints."""
    record = train(steps=(50, 100))
    own = record.cell.settings.backend.model_copy(update={"name": "verl"})
    settings = record.cell.settings.model_copy(update={"backend": own})
    cell = record.cell.model_copy(update={"settings": settings})
    return Record(cell, "succeeded", checkpoints=record.checkpoints, directory=record.directory)


def jobs(record: Record, evaluation: EvaluationSpec, folder: RunFolder) -> list[ScoringJob]:
    site = Site(options={"gres": "gpu:a100:4"})
    survey = Survey(evaluation, folder, "lm-eval 0.4.13", site)
    return [
        job
        for cell, checkpoint in survey.checkpoints([record])
        for job in survey.jobs(cell, checkpoint, record)
    ]


def test_at_full_scale_vllm_scores_and_transformers_compares(
    full: Record, folder: RunFolder, ask: AskFor
) -> None:
    """Scores of the last checkpoint, divergences of every one, and never both on one GPU."""
    evaluation = ask(divergence=FIG12, tasks=(EvalTask(name="countdown", domain="in", repeats=8),))
    told = [
        (job.step, job.engine.name, job.engine.device, [ask.asked.task.name for ask in job.asks])
        for job in jobs(full, evaluation, folder)
    ]
    both = ["math_test", "mmlu_college_biology"]
    assert told == [
        (50, "hf", "cuda", both),
        (100, "vllm", "cpu", ["countdown"]),
        (100, "hf", "cuda", both),
    ]
    scoring = jobs(full, evaluation, folder)[1]
    assert scoring.engine.tensor_parallel_size == 4
    assert scoring.asks[0].asked.harness == "lm-eval 0.4.13, vllm"


def test_a_rehearsal_compares_its_last_checkpoint_with_stand_ins(
    train: Train, folder: RunFolder, ask: AskFor, stand_in: SimpleNamespace
) -> None:
    skills = ask().tasks
    stand_in.rehearse_tasks = lambda _: skills
    record = train(steps=(50, 100))
    evaluation = ask(divergence=FIG12)
    (job,) = jobs(record, evaluation, folder)
    assert [
        (ask.asked.task.name, ask.asked.task.domain, ask.asked.task.repeats)
        for ask in job.asks
        if ask.asked.kind == "divergence"
    ] == [
        ("micro_sort", "in", 1),
        ("micro_reverse", "out", 1),
    ]
    every = jobs(record, evaluation.model_copy(update={"checkpoints": "all"}), folder)
    assert [job.step for job in every] == [50, 100]


def test_a_spec_that_asks_for_no_tasks_has_none_at_micro_scale(
    train: Train, folder: RunFolder, ask: AskFor, stand_in: SimpleNamespace
) -> None:
    """`orch plan` said so, and `orch run` scored the embedded tasks all the same."""
    stand_in.rehearse_tasks = lambda _: ask().tasks
    record = train(steps=(50,))
    assert not tasks_of(record.cell, EvaluationSpec())
    assert not jobs(record, EvaluationSpec(), folder)
    assert jobs(record, ask(), folder)


def test_two_divergences_of_a_domain_have_two_stand_ins(
    train: Train, ask: AskFor, stand_in: SimpleNamespace
) -> None:
    stand_in.rehearse_tasks = lambda _: ask().tasks
    asked = DivergenceRequest(
        tasks=tuple(DivergenceTask(name=n, domain="out") for n in "abcd"), max_items=9
    )
    told = divergence_tasks(train().cell, ask(divergence=asked))
    assert [task.name for task in told] == ["micro_reverse", "micro_copy", "micro_increment"]
    assert {task.max_items for task in told} == {9}


def test_greedy_decoding_has_one_seed(ask: AskFor) -> None:
    assert seeds_of(ask(seeds=(3, 4))) == (3, 4)
    assert seeds_of(ask(seeds=(3, 4), sampling=Sampling(min_p=1.0))) == (3,)


def test_the_processes_see_the_gpu_and_the_network_only_where_they_need_them(
    full: Record, train: Train, folder: RunFolder, ask: AskFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "HF_HUB_OFFLINE", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    micro = run.environment(jobs(train(1), ask(), folder))
    assert micro["CUDA_VISIBLE_DEVICES"] == ""
    assert micro["HF_HUB_OFFLINE"] == "1"
    tasks = (EvalTask(name="countdown", domain="in"),)
    engine = Engine(name="vllm", python="/opt/verl/bin/python")
    served = run.environment(jobs(full, ask(tasks=tasks, engine=engine), folder))
    assert "CUDA_VISIBLE_DEVICES" not in served
    assert "HF_HUB_OFFLINE" not in served
    assert served["PYTHONPATH"] == str(OWN_TASKS.parents[2])


def test_an_interpreter_that_is_not_there_is_told(
    full: Record, folder: RunFolder, ask: AskFor
) -> None:
    from orchestrator.errors import EnvironmentFault

    engine = Engine(name="vllm", python="/nowhere/bin/python")
    tasks = (EvalTask(name="countdown", domain="in"),)
    asked = jobs(full, ask(tasks=tasks, engine=engine), folder)
    with pytest.raises(EnvironmentFault, match=r"/nowhere/bin/python .* cannot be started"):
        list(run.work(asked, 1))
