"""The second half of the line on what real libraries log, at the scale of the paper.

Every run of a spec is planted. What collect, compare, report and MLflow say of it is what was
planted: each collapse and no other, each claim, each figure.
"""

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from orchestrator.analysis.claims import reason
from orchestrator.analysis.compare import Comparison
from orchestrator.evaluate import ScoreIndex
from orchestrator.pipeline import stages
from orchestrator.records import Record
from orchestrator.report.model import Panel
from orchestrator.runs.experiment import open_experiment
from orchestrator.spec.claims import SHARES
from orchestrator.tracking.store import store_of
from tests.replay.build import Replay, build
from tests.replay.cut import cut
from tests.replay.demanded import FIGURES, VALIDATION, demanded
from tests.replay.truth import WORLDS, World, falls
from tests.tracking.tracking_house import dump

pytestmark = [pytest.mark.slow, pytest.mark.long(90)]

SPECS = Path(__file__).parents[2] / "experiments"


class Read(NamedTuple):
    """A replay, and what the line reads of it."""

    replay: Replay
    results: stages.Results

    @property
    def records(self) -> Sequence[Record]:
        return self.results.records

    @property
    def index(self) -> ScoreIndex:
        return self.results.index

    @property
    def comparison(self) -> Comparison:
        return self.results.comparison


def read(spec: str, world: World, folder: Path, **more: object) -> Read:
    """Build a replay and read it."""
    replay = build(SPECS / f"{spec}.yaml", world, folder, **more)  # type: ignore[arg-type]  # one of the worlds
    return Read(replay, stages.read_results(replay.experiment))


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Read:
    """comedy_full where the paper is right, three seeds of six. Tests must leave it as it is."""
    folder = tmp_path_factory.mktemp("paper")
    return read("comedy_full", "paper", folder, overrides=("seeds=[0,1,2]",))


def test_the_paper_says_that_27_of_62_runs_of_a_seed_collapse(paper: Read) -> None:
    fallen = [cell for cell in paper.replay.experiment.cells if falls(cell, "paper")]
    assert (len(fallen), len(paper.records)) == (3 * 27, 3 * 62)  # and a control without KL


def test_every_log_is_read_whole(paper: Read) -> None:
    """Of cells resumed too: each step once, no fault, the reward as it was planted."""
    died = 0
    for record in paper.records:
        own = paper.replay.truths[record.cell.id]
        assert not record.faults
        updates = record.cell.settings.batch.num_minibatches
        rewards = {
            point.step: point.values["train/reward_mean"]
            for point in record.metrics
            if "train/reward_mean" in point.values
        }
        assert sorted(rewards) == [updates * n for n in range(1, len(rewards) + 1)]
        died += len(rewards) < own.batches
        near = [abs(value - own.reward(step // updates)) for step, value in rewards.items()]
        assert max(near) < 0.06, record.cell.slug
    assert died == 2, "of each library a run whose numbers are none"


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


def test_every_planted_collapse_is_counted_and_no_other(paper: Read) -> None:
    for record in paper.records:
        planted = paper.replay.truths[record.cell.id].falls_at is not None
        assert record.outcome is not None, (record.cell.slug, record.state)
        assert (record.outcome.kind == "collapsed") == planted, (record.cell.slug, record.outcome)
    counted = sum(c.collapse.count for c in paper.comparison.configurations)
    assert counted == 3 * 27


DECIDED = {True: "holds", False: "contradicted"}
OPEN = {"no effect", "seen", "too few runs", "not testable"}


def check_claims(told: Read) -> Counter[str]:
    """Hold each claim to what was planted. Return how often each verdict was given.

    A share of runs is counted by seed: with three seeds none is decided, and its counts are told.
    """
    experiment, comparison = told.replay.experiment, told.comparison
    few = len({cell.settings.seed for cell in experiment.cells}) < ENOUGH_SEEDS
    wrong = {}
    for judged in comparison.claims:
        planted = demanded(
            judged.claim, comparison.runs, told.replay.truths, experiment.spec.evaluation
        )
        right = {DECIDED[planted.true]} if planted.true is not None else OPEN
        if planted.counted and few:
            right = right | {"seen", "too few runs"}
        if judged.verdict not in right or planted.counted not in reason(judged):
            wrong[judged.name] = (judged.verdict, planted, reason(judged))
    assert wrong == {}
    return Counter(judged.verdict for judged in comparison.claims)


ENOUGH_SEEDS = 6


def test_every_claim_says_what_the_paper_says(paper: Read) -> None:
    """Of shares, six seeds decide: the world of the paper, below."""
    check_claims(paper)
    verdicts = {
        each.verdict
        for each in paper.comparison.claims
        if not each.claim.equal and each.claim.left.metric not in SHARES
    }
    assert verdicts == {"holds"}


@pytest.mark.thorough
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("spec", ["comedy_full", "cross_library"])
def test_a_world_is_told_apart(spec: str, world: World, tmp_path: Path) -> None:
    """Each run has its outcome, and each claim its verdict: none is false."""
    told = read(spec, world, tmp_path, seed=1)  # of 33 that are null, one in draw 0 looks like none
    for record in told.records:
        own = told.replay.truths[record.cell.id]
        planted = "collapsed" if own.falls_at else "unstable" if own.dips_at else "trained"
        assert record.outcome.kind == planted, (record.cell.slug, record.outcome)
    verdicts = check_claims(told)
    if (spec, world) == ("comedy_full", "paper"):
        assert verdicts["holds"] == 31, "all but the two at equal KL"


def test_the_validation_and_not_the_reward_is_the_accuracy_while_training(paper: Read) -> None:
    for record in paper.records:
        own, updates = (
            paper.replay.truths[record.cell.id],
            record.cell.settings.batch.num_minibatches,
        )
        validated = {
            point.step: point.values[VALIDATION]
            for point in record.metrics
            if VALIDATION in point.values
        }
        assert len(validated) > 5, record.cell.slug
        for step, value in validated.items():
            assert value == pytest.approx(own.validation(step // updates), abs=1e-4)


def test_each_figure_of_the_paper_shows_what_was_planted(paper: Read) -> None:
    """Its metric, its cells, its values; finals beside the models before training."""
    page = stages.build_report(paper.results, paper.results.experiment.folder.report)
    plates = {plate.number: plate for plate in page.plates}
    assert set(plates) == {"Fig. 1", *FIGURES}
    for number, wanted in FIGURES.items():
        figure = plates[number].figure
        assert figure is not None, plates[number].missing
        assert bool(plates[number].missing) == (number == "Fig. 8")  # no run without KL trained
        assert [panel.metric for panel in figure.panels] == [one.metric for one in wanted]
        for panel, one in zip(figure.panels, wanted, strict=True):
            chosen = [page.data["configurations"][i] for i in panel.at]
            terms = {(c["study"], c["model"], c["term"]) for c in chosen}
            own = set(one.terms) - ({"no KL"} if number == "Fig. 8" else set())
            assert terms == {(one.study, one.model, term) for term in own}, number
            betas = {c["beta"] or 0.0 for c in chosen}
            assert one.betas is None or betas == set(one.betas), number
            for each in chosen:
                _check_values(paper, page.data, panel, each)
            if panel.draws == "finals":
                assert {b["model"] for b in page.data["baselines"]} >= {one.model}


def _check_values(paper: Read, data: Mapping[str, Any], panel: Panel, shown: Any) -> None:
    """Compare what a panel draws of a configuration with what was planted in its cells."""
    updates = 4 if shown["study"] == "minibatch4" else 1
    for seed, cell_id in shown["cells"]:
        own = paper.replay.truths[cell_id]
        if panel.draws == "finals":
            value = shown["finals"][panel.metric][3].get(str(seed))
            if own.falls_at is None:
                assert value == pytest.approx(own.scores[panel.title], abs=2e-3), cell_id
            continue
        curve = shown["curves"][panel.metric]
        planted = {
            VALIDATION: own.validation,
            "kl_forward": own.forward_kl,
            "entropy": own.entropy_at,
        }[panel.metric if panel.metric == VALIDATION else panel.metric.split("/")[-1]]
        for step, value in zip(data["grids"][curve["g"]], curve["s"][str(seed)], strict=True):
            if value is not None:
                assert value == pytest.approx(planted(step // updates), rel=1e-3, abs=1e-3), cell_id


FEW = 6


@pytest.mark.parametrize("all_", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_mlflow_holds_what_the_page_says(all_: bool, paper: Read) -> None:
    experiment, records = paper.replay.experiment, paper.records
    chosen = records if all_ else records[:: len(records) // FEW]
    stages.mirror(experiment, chosen, paper.index.scores, quiet=True)
    held = dump(store_of(experiment.folder, None).uri, experiment.folder.experiment)
    scores = {(s.cell_id, s.task, s.metric): s for s in paper.index.scores}
    tags = Counter(run.get("tags", {}).get("outcome") for run in held.values())
    collapsed = sum(r.outcome is not None and r.outcome.kind == "collapsed" for r in chosen)
    assert tags["collapsed"] == (3 * 27 if all_ else collapsed)
    for record in chosen:
        run = held[f"cell/{record.cell.id}"]
        assert run["tags"]["outcome"] == record.outcome.word
        points = [(p.step, p.values[VALIDATION]) for p in record.metrics if VALIDATION in p.values]
        assert [(s, float(v)) for s, _, v in run["points"][VALIDATION]] == points
        for (cell_id, task, metric), score in scores.items():
            if cell_id == record.cell.id and metric == "mean@32":
                name = f"eval/{task}/mean_at_32"
                assert (score.step, repr(score.value)) in [
                    (s, v) for s, _, v in run["points"][name]
                ]


STATES = [1, *(pytest.param(n, marks=pytest.mark.thorough) for n in (0, *range(2, 50)))]
"""Of the first, each library has launched all its cells, nine of ten have met with an accident."""


@pytest.mark.parametrize("number", STATES)
def test_a_half_finished_state_is_reported(number: int, paper: Read, tmp_path: Path) -> None:
    """Whatever is torn or missing is named; nothing ends in a traceback."""
    replay = paper.replay
    spec = replay.experiment.spec.source
    overrides = [*replay.overrides, "seeds=[0]", f"site.runs_dir={tmp_path / 'runs'}"]
    experiment = open_experiment(spec, overrides)
    cells = {experiment.folder.cell(cell).path.name for cell in experiment.cells}

    def others(folder: str, names: list[str]) -> set[str]:
        return set(names) - cells if Path(folder).name == "cells" else set()

    whole = replay.experiment.folder.path.parent
    shutil.copytree(whole, tmp_path / "runs", ignore=others)
    told = cut(experiment.folder, number)
    results = stages.read_results(experiment)
    page = stages.write_report(results)
    assert page.stat().st_size > 10_000
    faults = [fault for record in results.records for fault in record.faults]
    faults += results.index.faults
    for accident in told:
        slug, _, what = accident.partition(": ")
        if what in ("exit record torn", "log of another release"):
            assert any(slug in fault for fault in faults), accident
