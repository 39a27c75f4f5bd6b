"""What is asked of a checkpoint, of whom, and with which engine; what an engine cannot be asked."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from orchestrator.errors import EnvironmentFault
from orchestrator.evaluate import engines, run
from orchestrator.evaluate.scores import ScoringJob
from orchestrator.evaluate.survey import Survey
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
        job for checkpoint in survey.checkpoints(record) for job in survey.jobs(record, checkpoint)
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


@pytest.mark.parametrize("name", ["auto", "vllm"])
def test_a_response_budget_that_leaves_no_room_for_a_prompt_is_refused(name: str) -> None:
    """Of 300 prompt tokens, 4096 positions and 8192 response tokens left none."""
    sampling = Sampling(max_response_tokens=8192)
    told = r"engine\.max_model_len \(4096 .*sampling\.max_response_tokens \(8192\)"
    with pytest.raises(ValidationError, match=told):
        EvaluationSpec(sampling=sampling, engine=Engine(name=name, max_model_len=4096))  # type: ignore[arg-type]  # a parameter
    EvaluationSpec(sampling=sampling, engine=Engine(name="hf", max_model_len=4096))
    with pytest.raises(EnvironmentFault, match=r"300 tokens .* 4096 positions"):
        engines.refuse_cut(300, 8192, 4096)
    engines.refuse_cut(300, 3796, 4096)
