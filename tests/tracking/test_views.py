"""What a reviewer opens in MLflow: runs with metrics, links, names; what leaves with a cell."""

import json
import time
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tracking_house import House

from orchestrator.runs.operations import prune
from orchestrator.tracking.names import allowed_name, run_names
from orchestrator.tracking.views import resolved


def test_the_first_list_shows_runs_with_metrics(house: House) -> None:
    """As MLflow opens an experiment (newest first), and as our link does."""
    from mlflow.tracking import MlflowClient

    for seconds, cell in enumerate(house.cells[:3], start=1):
        house.attempt(cell, range(3), started=time.time() + seconds)  # the ledger began before
    house.mirror()
    client = MlflowClient(tracking_uri=f"sqlite:///{house.database}")
    known = client.get_experiment_by_name(house.folder.experiment)
    state = json.loads(known.tags["mlflow.sharedViewState.orch-all"])
    ours = f"{state['orderByKey']} {'ASC' if state['orderByAsc'] else 'DESC'}"
    assert ours == "metrics.`train/reward_mean` DESC"
    cells = ["cell"] * 3
    bare = ("", "attributes.start_time DESC", [*cells, "summary"])
    for search, order, kinds in (bare, (state["searchFilter"], ours, cells)):
        runs = client.search_runs([known.experiment_id], search, order_by=[order])
        assert [run.data.tags["orch.kind"] for run in runs] == kinds
        assert all("train/reward_mean" in run.data.metrics for run in runs[:3])
        assert not any("mlflow.parentRunId" in run.data.tags for run in runs), "MLflow folds those"


def test_notes_lead_to_the_report_and_to_all_runs(house: House) -> None:
    house.fill()
    house.mirror()
    now = house.held
    report = "](#/experiments/E/runs/summary/artifacts/report/index.html?"
    cell = now[f"cell/{house.cells[0].id}"]["tags"]["mlflow.note.content"]
    for note in (now[""]["note"], now["summary"]["tags"]["mlflow.note.content"], cell):
        assert report in note
        assert note.count("viewStateShareKey=orch-all") == 1, "one link, not one for each term"
        assert "](orch:" not in note
    first = "[All runs, with their curves](#/experiments/E/runs?"
    assert now[""]["note"].startswith(first), "MLflow shows its first line"
    assert list(now[""]["views"]) == ["mlflow.sharedViewState.orch-all"]
    assert str(house.folder.cell(house.cells[0]).path) in cell


def test_only_links_of_ours_are_resolved() -> None:
    note = "orch:report (orch:report) [a](orch:report) [b](https://x/orch:all)"
    assert resolved(note, "7", "r") == (
        "orch:report (orch:report) [a](#/experiments/7/runs/r/artifacts/report/index.html"
        "?workflowType=machine_learning) [b](https://x/orch:all)"
    )


def test_a_pruned_cell_takes_its_run_along(house: House) -> None:
    house.fill()
    house.mirror()
    first = house.cells[0]
    (done,) = prune(house.folder, [house.folder.cell(first)])
    assert done.done
    report = house._replace(cells=house.cells[1:]).mirror()
    assert report.deleted == 1
    now = house.held
    assert f"cell/{first.id}" not in now
    assert len(now) == 1 + 1 + 2
    assert house._replace(cells=house.cells[1:]).mirror().deleted == 0
    house.attempt(first, range(3))
    house.mirror()
    assert f"cell/{first.id}" in house.held


def test_a_cell_that_merely_left_the_spec_stays(house: House) -> None:
    house.fill()
    house.mirror()
    house._replace(cells=house.cells[1:]).mirror()
    assert f"cell/{house.cells[0].id}" in house.held


@given(st.text(min_size=1, max_size=300))
def test_mlflow_takes_every_name(name: str) -> None:
    from mlflow.utils.validation import MAX_ENTITY_KEY_LENGTH, _validate_metric_name

    safe = allowed_name(name)
    _validate_metric_name(safe)
    assert len(safe) <= MAX_ENTITY_KEY_LENGTH


def test_long_names_stay_different() -> None:
    assert allowed_name("x" * 300) != allowed_name("x" * 301)


def test_names_of_runs_fit_mlflows_column(synthetic: Any) -> None:
    records = synthetic.grid({"k1.reward": [0.5] * 2}).records
    cells = [
        r.cell.model_copy(update={"axes": {"note": f"{'x' * 300}{r.cell.id}"}}) for r in records
    ]
    names = run_names(cells)
    assert all(len(name) <= 250 for name in names.values())
    assert len(set(names.values())) == len(cells)
