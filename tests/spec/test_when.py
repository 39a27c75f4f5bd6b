"""Tasks of evaluation follow the training data: `when` of a task, and everything that reads it."""

from pathlib import Path

import pytest

import orch
from orchestrator.errors import SpecError
from orchestrator.evaluate.baselines import declared_baselines
from orchestrator.evaluate.survey import divergence_tasks, tasks_of
from orchestrator.pipeline.stages import with_evaluation
from orchestrator.records import Cell
from orchestrator.rundir import RunFolder
from orchestrator.runs.doubts import measured
from orchestrator.spec import load
from orchestrator.spec.expand import expand
from orchestrator.spec.rehearse import rehearse, replaced_tasks
from tests.spec.spec_files import ROOT

COMEDY = ROOT / "experiments" / "comedy_full.yaml"


def names(cell: Cell, domain: str) -> list[str]:
    return [t.name for t in tasks_of(cell, load(COMEDY).evaluation) if t.domain == domain]


@pytest.fixture(scope="module")
def of_data() -> dict[str, Cell]:
    """One cell of comedy_full for each data set, as declared."""
    cells = expand(load(COMEDY, ("site=slurm_a100",)))
    return {cell.settings.data.name: cell for cell in cells}


def test_a_cell_is_scored_on_what_it_trains_on(of_data: dict[str, Cell]) -> None:
    """Countdown's cells were scored on MATH, and that was their domain."""
    evaluation = load(COMEDY).evaluation
    assert names(of_data["math"], "in") == ["math500", "math2"]
    assert names(of_data["countdown"], "in") == ["countdown"]
    assert len(names(of_data["math"], "out")) == len(names(of_data["countdown"], "out")) == 3
    assert [t.name for t in divergence_tasks(of_data["countdown"], evaluation)] == [
        "countdown",
        "mmlu_college_biology",
    ]
    known = set(measured(of_data["countdown"], evaluation))
    assert "eval/countdown/mean@32" in known
    assert "eval/math500/mean@32" not in known


def test_a_rehearsal_is_scored_on_its_own_skill(of_data: dict[str, Cell]) -> None:
    evaluation = load(COMEDY).evaluation
    math, countdown = (rehearse([of_data[name]])[0] for name in ("math", "countdown"))
    assert [names(math, "in"), names(countdown, "in")] == [["micro_sort"], ["micro_reverse"]]
    assert evaluation.divergence is not None
    fewer = evaluation.divergence.model_copy(update={"tasks": evaluation.divergence.tasks[:2]})
    (only,) = divergence_tasks(countdown, evaluation.model_copy(update={"divergence": fewer}))
    assert only.name == "micro_reverse", "math_test is not for it"
    nothing = evaluation.model_copy(update={"tasks": evaluation.tasks[:1]})
    assert not tasks_of(countdown, nothing)
    assert not replaced_tasks([countdown], nothing)
    assert replaced_tasks([countdown, math], nothing)


SPEC = """
name: two
model: {{name: m, path: /models/m}}
recipe: onpolicy_math
backend: verl@0.9.1
base: {{kl: none}}
studies: {{s: {{axes: {{data: [math, countdown]}}}}}}
evaluation:
  tasks:
    - {{name: math500, domain: in, when: {{{when}}}}}
    - {{name: countdown, domain: in, when: {{data: "!math"}}}}
    - {{name: mmlu_college_physics, domain: out}}
  baselines: [{{model: m}}]
"""


def spec(tmp_path: Path, when: str) -> Path:
    path = tmp_path / "two.yaml"
    path.write_text(SPEC.format(when=when))
    return path


def test_a_condition_is_read_as_one_of_an_axis(tmp_path: Path) -> None:
    asked = load(spec(tmp_path, "data: [math, other]"), ("site=slurm_a100",)).evaluation
    assert [task.when for task in asked.tasks] == [("data=math,other",), ("data!=math",), ()]
    for wrong, says in (
        ("dta: math", r"unknown field 'dta'.*tasks\[0\]\.when\.dta"),
        ("study: s", "a condition of a spec cannot ask for 'study'"),
        ("kl.beta: {a: 1}", "is compared with a value or a list"),
    ):
        with pytest.raises(SpecError, match=says):
            load(spec(tmp_path, wrong))
    text = spec(tmp_path, "data: math")
    text.write_text(text.read_text().replace("{data: math}", "data=math"))
    with pytest.raises(SpecError, match=r"mapping of fields; got .*data=math.*tasks\[0\]\.when"):
        load(text)


def test_a_model_trained_on_two_data_sets_has_two_baselines(tmp_path: Path) -> None:
    """Each is scored on the tasks of its cells; without `when` there is one."""
    (tmp_path / "config.json").write_text("{}")
    path = spec(tmp_path, "data: math")
    path.write_text(path.read_text().replace("/models/m", str(tmp_path)))
    read = load(path, ("site=slurm_a100",))
    declared, faults = declared_baselines(
        read.evaluation, expand(read), RunFolder.of(tmp_path, "two", "full")
    )
    assert not faults
    tasks = [[t.name for t in tasks_of(b.record.cell, read.evaluation)] for b in declared]
    assert tasks == [["math500", "mmlu_college_physics"], ["countdown", "mmlu_college_physics"]]
    assert len({b.record.cell.id for b in declared}) == 2
    plain = read.evaluation.model_copy(
        update={"tasks": tuple(t.model_copy(update={"when": ()}) for t in read.evaluation.tasks)}
    )
    assert (
        len(declared_baselines(plain, expand(read), RunFolder.of(tmp_path, "two", "full"))[0]) == 1
    )


def test_asking_for_divergences_follows_the_tasks(tmp_path: Path) -> None:
    experiment = orch.load(spec(tmp_path, "data: math"), ["site=slurm_a100"])
    wider = with_evaluation(experiment, divergence=True).spec.evaluation
    assert {
        cell.settings.data.name: {t.name for t in divergence_tasks(cell, wider)}
        for cell in experiment.cells
    } == {
        "math": {"math500", "mmlu_college_physics"},
        "countdown": {"countdown", "mmlu_college_physics"},
    }
