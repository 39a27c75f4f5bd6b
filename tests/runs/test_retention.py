"""Which checkpoints may go, and that nothing else does."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator import plugins
from orchestrator.evaluate.checkpoint import stamp
from orchestrator.evaluate.scores import Result
from orchestrator.evaluate.survey import divergence_tasks, seeds_of, tasks_of
from orchestrator.records import Cell, EvaluationSpec, Spec
from orchestrator.rundir import CellDir, RunFolder
from orchestrator.runs.retention import RetentionDecision, free_checkpoints, retention_decisions
from orchestrator.spec import load
from orchestrator.spec.expand import expand
from tests.evaluate.data import score_key
from tests.replay import recorded

SPEC = Path(__file__).parents[2] / "experiments" / "cross_library.yaml"
POLICY = SPEC.parents[1] / "backends" / "micro" / "policies" / "elder"
STEPS = (10, 20, 30)


@pytest.fixture(scope="module")
def spec() -> Spec:
    return load(SPEC)


@pytest.fixture(scope="module")
def cells(spec: Spec) -> dict[str, Cell]:
    """One cell of each library."""
    return {cell.settings.backend.name: cell for cell in reversed(expand(spec))}


def verl(home: CellDir, step: int, *, exported: bool = True) -> Path:
    """verl's shards of a step, and their export; the folder that evaluation reads."""
    recorded.checkpoint("verl", home.checkpoints, step, 1)
    shards = home.checkpoints / "x1" / f"global_step_{step}"
    (shards / "actor" / "model_world_size_1_rank_0.pt").write_bytes(b"1" * 1000)
    made = home.exports / f"step{step}-abc"
    if exported:
        shutil.copytree(POLICY, made / "huggingface")
        (made / "export.json").write_text(json.dumps({"checkpoint": str(shards)}))
    return made / "huggingface"


def score(
    home: CellDir, cell: Cell, evaluation: EvaluationSpec, step: int, reads: Path
) -> list[Path]:
    """Results of everything the spec asks of a checkpoint."""
    home.evaluations.mkdir(exist_ok=True)
    paths = []
    asked = [
        ("accuracy", task, seed)
        for task in tasks_of(cell, evaluation)
        for seed in seeds_of(evaluation)
    ]
    asked += [("divergence", task, 0) for task in divergence_tasks(cell, evaluation)]
    for kind, task, seed in asked:
        one = score_key(step=step, task=task, seed=seed, sampling=evaluation.sampling, kind=kind)
        result = Result(asked=one, files=stamp(reads), scores=(), cpu_seconds=0, versions={})
        paths.append(home.evaluations / f"{one.stem}.json")
        paths[-1].write_text(result.model_dump_json())
    return paths


def made(folder: RunFolder, cell: Cell) -> CellDir:
    folder.open()
    home = folder.cell(cell)
    home.make(cell)
    return home


def told(found: Sequence[RetentionDecision]) -> dict[int, str]:
    return {each.step: each.kept for each in found}


def scored(folder: RunFolder, cell: Cell, evaluation: EvaluationSpec) -> CellDir:
    """A cell of Prime-RL with all of its scores."""
    home = made(folder, cell)
    for step in STEPS:
        recorded.checkpoint("prime_rl", home.checkpoints, step, 1)
        (home.checkpoints / "checkpoints" / f"step_{step}" / "large").write_bytes(b"1" * 1000)
        score(home, cell, evaluation, step, home.checkpoints / "weights" / f"step_{step}")
    return home


def test_only_what_was_evaluated_and_is_not_the_last_goes(
    spec: Spec, cells: dict[str, Cell], folder: RunFolder
) -> None:
    cell, evaluation = cells["verl"], spec.evaluation
    home = made(folder, cell)
    for step in (*STEPS, 40, 50):
        reads = verl(home, step, exported=step != 40)
        if step not in (30, 40):
            score(home, cell, evaluation, step, reads)
    lost = score(home, cell, evaluation, 30, home.exports / "step30-abc" / "huggingface")
    lost[0].unlink()
    found = list(retention_decisions([cell], evaluation, folder))
    missing = tasks_of(cell, evaluation)[0].name
    assert told(found) == {
        10: "",
        20: "",
        30: f"no scores of it for {missing}",
        40: "not exported, so never evaluated",
        50: "the cell's last",
    }
    assert found[0].num_bytes > 1000, "the shards and the export"
    before = {path for path in folder.path.rglob("*") if "eval" in path.parts}
    done = free_checkpoints(found, evaluation, folder)
    assert [each.step for each in done] == [10, 20]
    left = plugins.load("verl").find_checkpoints(home.checkpoints)
    assert [each.step for each in left] == [30, 40, 50]
    assert sorted(path.name for path in home.exports.iterdir()) == ["step30-abc", "step50-abc"]
    assert {path for path in folder.path.rglob("*") if "eval" in path.parts} == before
    assert [e["step"] for e in folder.events() if e["event"] == "freed"] == [10, 20]
    assert free_checkpoints(found, evaluation, folder) == [], "once is enough"


def test_a_checkpoint_written_anew_has_no_scores(
    spec: Spec, cells: dict[str, Cell], folder: RunFolder
) -> None:
    cell, evaluation = cells["prime_rl"], spec.evaluation
    home = scored(folder, cell, evaluation)
    (home.checkpoints / "weights" / "step_10" / "config.json").write_text('{"other": 1}')
    found = list(retention_decisions([cell], evaluation, folder))
    assert told(found)[10].startswith("no scores of it for ")
    assert told(found)[20] == ""
    other = evaluation.model_copy(
        update={"sampling": evaluation.sampling.model_copy(update={"temperature": 0.123})}
    )
    assert told(list(retention_decisions([cell], other, folder)))[20].startswith(
        "no scores of it for "
    )


def test_a_librarys_own_state_goes_with_the_policy(
    spec: Spec, cells: dict[str, Cell], folder: RunFolder
) -> None:
    cell, evaluation = cells["prime_rl"], spec.evaluation
    home = scored(folder, cell, evaluation)
    found = list(retention_decisions([cell], evaluation, folder))
    assert found[0].num_bytes > 1000
    changed = home.evaluations / next(home.evaluations.iterdir()).name
    assert len(free_checkpoints(found, evaluation, folder)) == 2
    assert changed.exists()
    for place in ("weights", "checkpoints", "run_default/checkpoints"):
        assert [path.name for path in (home.checkpoints / place).iterdir()] == ["step_30"]


def test_a_cell_that_runs_is_left_alone_and_a_removal_cut_short_is_ended(
    spec: Spec, cells: dict[str, Cell], folder: RunFolder
) -> None:
    cell, evaluation = cells["prime_rl"], spec.evaluation
    home = scored(folder, cell, evaluation)
    (home.checkpoints / "weights" / ".removed-step_5-123").mkdir()
    found = list(retention_decisions([cell], evaluation, folder))
    assert [each.step for each in found if not each.kept] == [10, 20]
    attempt = home.open_attempt()
    attempt.job.write_text("{}")
    claim = home.take_claim()
    with claim:
        assert {each.kept for each in retention_decisions([cell], evaluation, folder)} == {
            "the cell is running",
            "the cell's last",
        }
        assert free_checkpoints(found, evaluation, folder) == []
    assert [each.step for each in free_checkpoints(found, evaluation, folder)] == [10, 20]
    assert not list(home.checkpoints.rglob(".removed-*"))


def test_skyrl_leaves_no_half_checkpoint(
    spec: Spec, cells: dict[str, Cell], folder: RunFolder
) -> None:
    """A removed checkpoint is not reported as cut off afterwards."""
    cell, evaluation, backend = cells["skyrl"], spec.evaluation, plugins.load("skyrl")
    home = made(folder, cell)
    for step in STEPS:
        recorded.checkpoint("skyrl", home.checkpoints, step, 1)
        reads = home.checkpoints / "exports-x1" / f"global_step_{step}" / "policy"
        score(home, cell, evaluation, step, reads)
    assert [c.step for c in backend.find_checkpoints(home.checkpoints)] == list(STEPS)
    found = list(retention_decisions([cell], evaluation, folder))
    assert len(free_checkpoints(found, evaluation, folder)) == 2
    (left,) = backend.begun_checkpoints(home.checkpoints)
    assert left == backend.find_checkpoints(home.checkpoints)[0].path
