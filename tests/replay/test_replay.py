"""The second half of the line on what real libraries log, at the scale of the paper.

Every run of a spec is planted. What collect, compare, report and MLflow say of it is what was
planted: each collapse and no other, each claim, each figure.
"""

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from orchestrator import plugins
from orchestrator.analysis.compare import Comparison
from orchestrator.errors import LogFault
from orchestrator.evaluate import ScoreIndex
from orchestrator.pipeline import stages
from orchestrator.records import AttemptPaths, Record
from orchestrator.runs.experiment import open_experiment
from tests.replay import recorded
from tests.replay.build import Replay, build
from tests.replay.cut import cut
from tests.replay.truth import World, falls

pytestmark = [pytest.mark.slow, pytest.mark.long(90)]

SPECS = Path(__file__).parents[2] / "experiments"
EQUAL = "~"
"""The relation of a claim that two things do not differ."""


class Read(NamedTuple):
    """A replay, and what the line reads of it."""

    replay: Replay
    records: list[Record]
    index: ScoreIndex
    comparison: Comparison


def read(spec: str, world: World, folder: Path, **more: object) -> Read:
    """Build a replay and read it."""
    replay = build(SPECS / f"{spec}.yaml", world, folder, **more)  # type: ignore[arg-type]
    records = stages.collect_records(replay.experiment)
    index = stages.scores_and_faults(replay.experiment)
    compared = stages.compare_records(replay.experiment, records, index.scores, index.items)
    return Read(replay, records, index, compared)


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Read:
    """comedy_full where the paper is right. Tests must leave it as it is."""
    return read("comedy_full", "paper", tmp_path_factory.mktemp("paper"))


def test_the_paper_says_that_81_of_183_runs_collapse(paper: Read) -> None:
    fallen = [cell for cell in paper.replay.experiment.cells if falls(cell, "paper")]
    assert (len(fallen), len(paper.records)) == (81, 186)  # 183, and a control without KL


def test_every_log_is_read_whole(paper: Read) -> None:
    """Of cells resumed too: each step once, no fault, the reward as it was planted."""
    for record in paper.records:
        own = paper.replay.truths[record.cell.id]
        assert not record.faults
        updates = record.cell.settings.batch.num_minibatches
        rewards = {
            point.step: point.values["train/reward_mean"]
            for point in record.metrics
            if "train/reward_mean" in point.values
        }
        last = own.batches if record.state == "succeeded" else max(rewards) // updates
        assert sorted(rewards) == [updates * n for n in range(1, last + 1)], record.cell.slug
        near = [abs(value - own.reward(step // updates)) for step, value in rewards.items()]
        assert max(near) < 0.06, record.cell.slug


def test_every_score_is_read(paper: Read) -> None:
    assert not paper.index.faults
    read = {
        (s.cell_id, s.step, s.task): s.value for s in paper.index.scores if s.metric == "mean@32"
    }
    for record in paper.records:
        own, last = paper.replay.truths[record.cell.id], record.checkpoints[-1].step
        for task, planted in own.scores.items():
            assert read.get((record.cell.id, last, task), planted) == pytest.approx(
                planted, abs=1e-3
            )


STATES = range(1)
MANY_STATES = [pytest.param(n, marks=pytest.mark.thorough) for n in range(50, 50)]


@pytest.fixture(scope="module")
def one_seed(tmp_path_factory: pytest.TempPathFactory) -> Replay:
    folder = tmp_path_factory.mktemp("one seed")
    return build(SPECS / "comedy_full.yaml", "paper", folder, overrides=("seeds=[0]",))


@pytest.mark.parametrize("number", [*STATES, *MANY_STATES])
def test_a_half_finished_state_is_reported(number: int, one_seed: Replay, tmp_path: Path) -> None:
    """Whatever is torn or missing is named; nothing ends in a traceback."""
    shutil.copytree(one_seed.experiment.folder.path.parent, tmp_path / "runs")
    spec = one_seed.experiment.spec.source
    experiment = open_experiment(spec, [*one_seed.overrides, f"site.runs_dir={tmp_path / 'runs'}"])
    told = cut(experiment.folder, number)
    records = stages.collect_records(experiment)
    index = stages.scores_and_faults(experiment)
    compared = stages.compare_records(experiment, records, index.scores, index.items)
    page = stages.write_report(experiment, compared, records, index.scores, faults=index.faults)
    assert page.stat().st_size > 10_000
    faults = [fault for record in records for fault in record.faults] + list(index.faults)
    for accident in told:
        slug, _, what = accident.partition(": ")
        if what in ("exit record torn", "log of another release"):
            assert any(slug in fault for fault in faults), accident


@pytest.mark.parametrize("library", ["verl", "trl", "openrlhf", "skyrl"])
def test_a_name_of_another_release_is_named(library: str, tmp_path: Path) -> None:
    """A log without its reward is not read as one with another."""
    place = AttemptPaths(tmp_path / "plan", tmp_path / "attempts" / "1", tmp_path / "checkpoints")
    rows = {n: {"reward": 0.5, "entropy": 1.0} for n in range(1, 30)}
    log = str(place.attempt_dir / "verl.x1.jsonl") if library == "verl" else ""
    recorded.replay(library, place, log, rows, 1)
    for path in recorded.logs_of(library, place.attempt_dir):
        content = path.read_bytes()
        path.write_bytes(
            content.replace(b"eward", b"ewarD").replace(b"critic/score", b"critic/scorE")
        )
    with pytest.raises(LogFault) as raised:
        list(plugins.load(library).read_metrics(place.attempt_dir))
    assert recorded.record(library).release in str(raised.value)
