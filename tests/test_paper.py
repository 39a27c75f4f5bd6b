"""The paper's figures, tables and statements at full scale: what is planted comes out."""

import math
import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from orchestrator.analysis.compare import compare
from orchestrator.evaluate import ScoredBaseline
from orchestrator.evaluate.survey import tasks_of
from orchestrator.records import Cell, ExitRecord, MetricPoint, Outcome, Record, Score, Spec
from orchestrator.report import Context, Report, report
from orchestrator.report.figures import every_figure, rows_of, tables, views
from orchestrator.report.printed import printed_section
from orchestrator.runs.measured import fillable
from orchestrator.spec import load
from orchestrator.spec.expand import expand
from tests.spec.spec_files import ROOT

CURVES, POINTS = "eval/validation/mean", 25
PANELS = {  # figure -> metrics, and configurations drawn of each
    "Fig. 2": {CURVES: [5, 5, 5]},
    "Fig. 3": {CURVES: [4, 4]},
    "Fig. 4": {CURVES: [4, 4]},
    "Fig. 5": 5,
    "Fig. 6": 5,
    "Fig. 7": {CURVES: [5, 5]},
    "Fig. 8": 2,  # no KL collapsed: it has no accuracy
    "Fig. 9": {CURVES: [4]},
    "Fig. 10": 5,
    "Fig. 11": {CURVES: [5]},
    "Fig. 12": {
        f"eval/{task}/{measure}": [8]
        for measure in ("kl_forward", "entropy")
        for task in ("math_test", "mmlu_college_biology")
    },
}


def collapses(cell: Cell) -> bool:
    """What the paper says of the cell's configuration."""
    settings, beta = cell.settings, cell.settings.kl.beta
    offpolicy = settings.batch.num_minibatches == 4 or settings.max_staleness_steps > 0
    if settings.kl.label == "k1.loss":
        return offpolicy or (beta in (0.3, 1) if "qwen" in settings.model.name else beta != 0.1)
    is_none = settings.kl.label == "none"
    return settings.kl.label == "k3.reward" or (is_none and settings.max_staleness_steps > 0)


class World(NamedTuple):
    spec: Spec
    records: list[Record]
    scores: list[Score]

    def told(self) -> Report:
        base = [s.model_copy(update={"value": 0.25}) for s in self.scores if "mean@" in s.metric]
        known = {(s.task, s.metric): s for s in base}
        before = [
            ScoredBaseline(each, f"b{i}", tuple(known.values()), "")
            for i, each in enumerate(self.spec.evaluation.baselines)
        ]
        found = compare(self.spec, self.records, self.scores)
        context = Context(baselines=tuple(before))
        return report(found, self.records, self.scores, self.spec, context=context)


def world(seeds: str = "[0,1]", states: random.Random | None = None) -> World:
    """The runs of comedy_full. `states`: some have not ended, lack scores or have a torn log."""
    overrides = [f"seeds={seeds}", "site=slurm_a100"]
    spec = load(ROOT / "experiments" / "comedy_full.yaml", overrides)
    made = World(spec, [], [])
    noise = random.Random(1)  # noqa: S311  (no secret)
    for cell in expand(spec):
        lost, steps = collapses(cell), cell.settings.num_train_steps
        good = 0.7 - 0.1 * cell.settings.kl.beta + noise.gauss(0, 0.01)
        good += 0.1 if cell.settings.kl.label in ("k1.reward", "k1.both", "k3.both") else 0
        state = "succeeded" if states is None else states.choice(STATES)
        points = [
            MetricPoint(steps * i // POINTS, 0.0, values(i / POINTS, good, lost))
            for i in range(POINTS + 1)
        ]
        outcome = Outcome(kind="collapsed", cause="reward", step=steps // 2) if lost else None
        outcome = outcome or Outcome(kind="trained")
        end = ExitRecord(state="succeeded", started=1e9, ended=1e9 + 9, outcome=outcome)
        done = state == "succeeded"
        kept = points if done else points[: states.choice([0, 1, 7])] if states else points
        made.records.append(
            Record(
                cell,
                state,
                () if state == "planned" else (end if done else None,),
                outcome if done else None,
                tuple(kept),
                directory=Path("/runs") / cell.directory,
            )
        )
        if done and (states is None or states.random() < 0.6):
            made.scores.extend(scored(cell, spec, good, lost))
    return made


STATES = ("succeeded", "running", "planned", "failed")


def values(share: float, good: float, lost: bool) -> dict[str, float]:
    """The accuracy is 0.3 below the training reward, so that one cannot pass for the other."""
    reward = (0.4 + (good - 0.4) * (1 - math.exp(-5 * share))) * (0 if lost and share > 0.5 else 1)
    return {"train/reward_mean": reward, CURVES: max(0.0, reward - 0.3)}


def scored(cell: Cell, spec: Spec, good: float, lost: bool) -> list[Score]:
    steps, asked = cell.settings.num_train_steps, spec.evaluation.divergence
    assert asked is not None
    parts = [
        (steps, task.name, task.domain, f"mean@{task.repeats}", 0.0 if lost else good - i / 20)
        for i, task in enumerate(tasks_of(cell, spec.evaluation))
    ]
    for step in range(50, steps + 1, 50):
        far = (2.0 if cell.settings.kl.label == "k3.loss" else 4.0) * step / steps
        for each in asked.tasks:
            parts += [(step, each.name, each.domain, "kl_forward", far)]
            parts += [(step, each.name, each.domain, "entropy", 0.1 * (5 - far))]
    return [
        Score(
            cell_id=cell.id,
            step=step,
            task=task,
            domain=domain,
            metric=metric,
            value=value,
            num_items=100,
            repeats=32,
        )
        for step, task, domain, metric, value in parts
    ]


@pytest.fixture(scope="module")
def full() -> World:
    return world()


@pytest.fixture(scope="module")
def told(full: World) -> Report:
    return full.told()


def test_every_figure_has_the_papers_metric_cells_and_baselines(told: Report) -> None:
    tasks = ["math500", "math2"]
    tasks += [f"mmlu_college_{subject}" for subject in ("physics", "chemistry", "biology")]
    for plate in told.plates[1:]:
        assert plate.figure is not None, plate.number
        panels = plate.figure.panels
        after = [panel for panel in panels if panel.draws == "finals"]
        assert [p.title for p in after] == (tasks if after else []), plate.number
        assert all(panel.metric == f"eval/{panel.title}/mean@32" for panel in after)
        wanted = PANELS[plate.number]
        if isinstance(wanted, int):
            assert {len(panel.at) for panel in panels} == {wanted}, plate.number
            continue
        drawn: dict[str, list[int]] = {}
        for panel in panels:
            if panel.draws == "curves":
                drawn.setdefault(panel.metric, []).append(len(panel.at))
        assert drawn == wanted, plate.number
    every = tables(told.data)
    for plate in told.plates[4:6]:
        assert plate.figure is not None
        for view in views(plate.figure, told.data):
            rows = rows_of(view, told.data, every, ())
            bases = [row["name"] for row in rows if row.get("base")]
            template = ["base, no template"] * (plate.number == "Fig. 5")
            assert bases == ["base model", *template]
            assert "none" in [row["name"] for row in rows], "no KL is beside them"


def test_every_drawn_value_is_the_planted_one(full: World, told: Report) -> None:
    planted = {record.cell.id: record.metrics for record in full.records}
    every, seen = tables(told.data), 0
    for figure in every_figure(told):
        if figure.kind != "redrawn":
            continue
        for view in views(figure, told.data):
            if not view.get("table", "").startswith(f"curves {CURVES}"):
                continue
            for row in rows_of(view, told.data, every, ()):
                if not row.get("faint"):
                    continue
                seed = int(row["name"].rpartition(" ")[2])
                cells = dict(told.data["configurations"][row["at"]]["cells"])
                (point,) = [p for p in planted[cells[seed]] if p.step == row["step"]]
                assert row["value"] == pytest.approx(point.values[CURVES], rel=1e-3, abs=1e-9)
                seen += 1
    assert seen > 2000


def test_collapsed_runs_are_counted_and_enter_no_accuracy(full: World, told: Report) -> None:
    lost = sum(collapses(record.cell) for record in full.records)
    assert dict(told.facts)["runs collapsed"] == f"{lost} of {len(full.records)}"
    finals = [
        final[0]
        for c in told.data["configurations"]
        for metric, final in c["finals"].items()
        if "/mean" in metric and metric != CURVES
    ]
    assert min(finals) > 0.3


def test_every_statement_is_a_claim_that_is_tested_here(full: World, told: Report) -> None:
    statements = full.spec.published.statements
    assert [each.claim for each in statements] == list(full.spec.claims)
    assert "v1 of 26 December 2025" in full.spec.published.source
    untestable = [card.name for card in told.cards if card.verdict == "not testable"]
    of_family = full.spec.families
    assert {of_family[name] for name in untestable} <= {"equal_kl"}, "no KL is planted here"
    assert {card.name: card.here for card in told.cards}["four_updates_accentuate"] == (
        "8 of 8 not stable, against 4 of 8"
    )
    reasons = {card.name: card.reason for card in told.cards}
    assert "corrected over 6 claims" in reasons["k1_loss_does_what_none_does"], "a family"
    assert [plate.number for plate in told.plates if not plate.here] == []


def test_table_2_is_what_the_releases_make_of_it(full: World) -> None:
    found = printed_section(compare(full.spec, full.records, []), full.records, full.spec)
    assert found is not None
    terms, settings = found.tables
    assert [row[1] for row in terms.rows] == ["unbiased", "biased", "biased", "biased"]
    asked = {(row[0], row[1] == "none", row[2]): row[3] for row in settings.rows}
    assert asked["verl", True, "0.9.1, 0.8.0"] == "no KL"
    assert asked["verl", False, "0.9.1, 0.8.0"].startswith("k1.reward")
    assert asked["OpenRLHF", True, "0.11.2, 0.10.1.post2"] == "k1.reward, β 0.01"
    assert "did you mean '--algo.kl.estimator'" in asked["OpenRLHF", False, "0.11.2"]
    assert asked["OpenRLHF", False, "0.10.1.post2"].startswith("k1.reward")
    assert asked["SkyRL", True, "0.4.0, 0.3.0, 0.2.0"] == "k3.loss, β 0.001"
    assert asked["SkyRL", False, "0.4.0, 0.3.0, 0.2.0"].startswith("refused: SkyRL refuses")


def test_a_plan_says_what_it_can_fill(full: World) -> None:
    cells: list[Any] = [record.cell for record in full.records]
    of = len(full.spec.claims)
    assert f"claims: {of} of {of} can be filled by these launches" in fillable(full.spec, cells)
    no_evaluation = full.spec.model_copy(update={"evaluation": type(full.spec.evaluation)()})
    lines = fillable(no_evaluation, cells)
    assert "  not Fig. 5: Qwen2.5-7B: the spec's evaluation does not measure tasks" in lines
    assert any(
        line.startswith("  not unbiased_wins_in_domain: the spec's evaluation") for line in lines
    )
    some = [cell for cell in cells if "async10" not in cell.studies]
    assert "  not Fig. 8: Qwen2.5-7B: no chosen cell of study async10" in fillable(full.spec, some)
