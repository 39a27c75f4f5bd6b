"""The cost model: its arithmetic by hand, and that measurements replace it."""

from pathlib import Path

import pytest

from orchestrator.library.model_size import declared_parameters
from orchestrator.records import Cell, EvalTask, EvaluationSpec, ExitRecord, Outcome
from orchestrator.report.results import wall_seconds
from orchestrator.rundir import RunFolder
from orchestrator.runs import pilot
from orchestrator.runs.cost import (
    ASSUMED_UTILISATION,
    CPU_SECONDS_PER_UPDATE,
    StepRate,
    cost_shape,
    measured_rates,
    price,
    scoring_line,
    total,
)
from orchestrator.runs.pilot import known_rates
from orchestrator.runs.plan import plan
from orchestrator.settings import BackendRef, Batch, Cadence, Data, Kl, Model, Resources, Rollout
from tests.launch.kit import ended, leave, make_cell


def paper(name: str = "qwen2.5-7b", path: str = "Qwen/Qwen2.5-7B", **settings: object) -> Cell:
    """Fig. 2 of the paper: 256 prompts x 5 rollouts, up to 1024 tokens, 250 steps, 8 A100."""
    cell = make_cell()
    changed = cell.settings.model_copy(
        update={
            "model": Model(name=name, path=path),
            "rollout": Rollout(group_size=5, max_response_tokens=1024),
            "batch": Batch(num_prompts=256),
            "num_train_steps": 250,
            "backend": BackendRef(name="verl"),
            **settings,
        }
    )
    resources = Resources(num_nodes=2, gpus_per_node=4)
    return cell.model_copy(update={"settings": changed, "resources": resources})


def hours(cell: Cell) -> float:
    priced = price(cell)
    return priced.hours


def test_gpu_hours_by_hand() -> None:
    flops = 250 * 256 * 5 * (200 + 512) * 12 * 7e9
    priced = price(paper())
    assert priced.source == "estimated"
    assert priced.hours == pytest.approx(flops / (312e12 * ASSUMED_UTILISATION) / 3600)


def test_validation_while_training_by_hand() -> None:
    """5,000 problems of MATH before the first of 250 train steps and at every tenth."""
    math = Data(name="math", path="DigitalLearningGmbH/MATH-lighteval")
    cell = paper(data=math).model_copy(update={"cadence": Cadence(evaluate_every_steps=10)})
    flops = 5000 * 26 * (200 + 512) * 2 * 7e9
    validated = flops / (312e12 * ASSUMED_UTILISATION) / 3600
    assert hours(cell) == pytest.approx(hours(paper()) + validated)


def test_what_the_price_depends_on() -> None:
    whole = hours(paper())
    assert hours(paper(kl=Kl(estimator="none"))) == pytest.approx(whole * 10 / 12)
    assert hours(paper(batch=Batch(num_prompts=256, num_minibatches=2))) == pytest.approx(whole / 2)
    assert hours(paper(path="Qwen/Qwen2.5-14B")) == pytest.approx(2 * whole)
    on_h100 = paper().model_copy(update={"resources": Resources(gpu="H100-80gb", gpus_per_node=8)})
    assert hours(on_h100) == pytest.approx(whole * 312 / 989)


@pytest.mark.parametrize(
    ("path", "size"),
    [
        ("Qwen/Qwen2.5-7B", 7e9),
        ("Qwen/Qwen2.5-0.5B-Instruct", 0.5e9),
        ("meta-llama/Llama-3.1-8B-Instruct", 8e9),
        ("Qwen/Qwen3-4B-Instruct-2507", 4e9),
        ("org/7bit-model", None),
        ("org/model-v2b1", None),
    ],
)
def test_the_size_is_read_from_the_name(path: str, size: float | None) -> None:
    assert declared_parameters(paper("unsaid", path).settings.model) == size


def test_hours_that_the_author_declares_are_taken() -> None:
    declared = Resources(num_nodes=2, gpus_per_node=4, hours=10)
    assert price(paper().model_copy(update={"resources": declared})) == (80, "declared")


def test_what_cannot_be_priced_is_said_and_not_guessed() -> None:
    unknown = paper("secret", "org/secret")
    assert price(unknown) is None
    several = total([unknown, paper()])
    assert several.gpu_hours == hours(paper())
    assert str(several).endswith("[1 of unknown size, left out, 1 estimated]")


def micro(seed: int = 0, **more: object) -> Cell:
    cell = make_cell(seed, steps=100)
    settings = cell.settings.model_copy(update={"backend": BackendRef(name="micro"), **more})
    return cell.model_copy(update={"settings": settings, "id": f"{seed:012d}"})


def test_embedded_cells_are_counted_in_cpu_seconds() -> None:
    assert hours(micro()) == pytest.approx(100 * CPU_SECONDS_PER_UPDATE / 3600)
    assert str(total([micro()])) == "0.72 CPU-seconds [1 estimated]"


def test_measured_cells_replace_the_estimate_for_their_shape_only(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "runs")
    cells = [micro(0), micro(1), micro(2)]
    other = micro(3, rollout=Rollout(group_size=16, max_response_tokens=8))
    leave(folder, cells[0], ended(cpu_seconds=2.0))
    leave(folder, cells[1], ended(cpu_seconds=4.0))
    rates = measured_rates(plan(cells, folder).rows)
    assert price(cells[2], rates) == (pytest.approx(3.0 / 3600), "measured")
    assert total([cells[2], other], rates).cells == {"measured": 1, "estimated": 1}


def test_a_pilot_is_taken_until_a_whole_cell_has_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path / "runs")
    cells = [micro(0), micro(1)]
    pilots = {cost_shape(cells[0]): StepRate(0.01, 0.5)}
    monkeypatch.setattr(pilot, "pilot_rates", lambda _folder: pilots)
    rates = known_rates(plan(cells, folder).rows, folder)
    assert price(cells[1], rates) == (pytest.approx(1.5), "measured")
    leave(folder, cells[0], ended(cpu_seconds=2.0))
    rates = known_rates(plan(cells, folder).rows, folder)
    assert price(cells[1], rates) == (pytest.approx(2 / 3600), "measured")


def test_what_does_not_tell_the_cost_of_a_whole_run_is_not_measured(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "runs")
    cells = [micro(0), micro(1), micro(2)]
    leave(folder, cells[0], None, ended(cpu_seconds=99.0))  # resumed: a part of the steps
    leave(folder, cells[1], ended(outcome=Outcome(kind="collapsed", cause="nan", step=4)))
    leave(folder, cells[2], ended("failed"))
    assert not measured_rates(plan(cells, folder).rows)


def test_scoring_by_hand() -> None:
    """500 problems of MATH500 four times, 210 of MATH^2 once, of one checkpoint of 7 B."""
    tasks = (
        EvalTask(name="math500", domain="in", repeats=4),
        EvalTask(name="math2", domain="in", repeats=1),
    )
    evaluation = EvaluationSpec(tasks=tasks)
    length = evaluation.sampling.max_response_tokens
    flops = (500 * 4 + 210) * (200 + length / 2) * 2 * 7e9
    scored = flops / (312e12 * ASSUMED_UTILISATION) / 3600
    assert scoring_line([paper()], evaluation) == f"{scored:.3g} GPU-hours estimated"
    assert not scoring_line([paper()], EvaluationSpec())


def test_seconds_in_which_several_are_at_work_count_once() -> None:
    def end(started: float, ended: float) -> ExitRecord:
        return ExitRecord(state="succeeded", started=started, ended=ended)

    assert wall_seconds([end(0, 10), end(2, 12), end(20, 25), end(3, 4)]) == 17
