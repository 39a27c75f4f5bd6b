"""What a reviewer opens in MLflow: views, links, data sets; and what leaves with a pruned cell."""

import json
import re
from typing import Any

import pytest
from tracking_house import House, dump

from orchestrator.runs.collect import collect
from orchestrator.runs.operations import prune
from orchestrator.tracking.views import View, resolved, view_key, views


def held(house: House) -> dict[str, Any]:
    return dump(f"sqlite:///{house.database}", house.folder.experiment)


def fill(house: House) -> list[View]:
    house.attempt(house.cells[0], range(3))
    house.attempt(house.cells[1], range(3), state="failed")
    house.attempt(house.cells[2], range(3))
    return views(collect(house.cells, house.folder))


def test_every_view_shows_as_many_runs_as_it_says(house: House) -> None:
    from mlflow.tracking import MlflowClient

    found = fill(house)
    house.mirror()
    client = MlflowClient(tracking_uri=f"sqlite:///{house.database}")
    known = client.get_experiment_by_name(house.folder.experiment)
    assert {view.title: view.num_runs for view in found} == {
        "All cells": 3,
        "Failed runs": 1,
        "Study onpolicy": 3,
        "KL k1.reward": 2,
        "KL k3.loss": 1,
        "β = 0.1": 3 if {c.settings.kl.beta for c in house.cells} == {0.1} else 0,
    }
    for view in found:
        state = json.loads(known.tags[f"mlflow.sharedViewState.{view.key}"])
        runs = client.search_runs([known.experiment_id], state["searchFilter"])
        assert len(runs) == view.num_runs, view
        assert {run.data.tags["orch.kind"] for run in runs} == {"cell"}
        assert state["orderByKey"] == "metrics.`train/reward_mean`"


def test_a_view_that_no_run_is_left_in_goes(house: House) -> None:
    fill(house)
    house.mirror()
    assert "mlflow.sharedViewState.orch-failed" in held(house)[""]["views"]
    house.attempt(house.cells[1], range(3), started=1_700_000_900.0)
    house.mirror()
    assert "mlflow.sharedViewState.orch-failed" not in held(house)[""]["views"]


def test_notes_lead_to_the_report_and_to_the_views(house: House) -> None:
    house.folder.report.mkdir()
    (house.folder.report / "index.html").write_text("<p>report</p>")
    fill(house)
    house.mirror()
    now = held(house)
    report = "](#/experiments/E/runs/summary/artifacts/report/index.html?"
    cell = now[f"cell/{house.cells[0].id}"]["tags"]["mlflow.note.content"]
    study = now["study/onpolicy"]["tags"]["mlflow.note.content"]
    for note in (now[""]["note"], now["summary"]["tags"]["mlflow.note.content"], study, cell):
        assert report in note
        assert "](orch:" not in note
    known = set(now[""]["views"])
    for note in (now[""]["note"], study, cell):
        keys = re.findall(r"viewStateShareKey=([^&]+)&", note)
        assert keys
        assert {f"mlflow.sharedViewState.{key}" for key in keys} <= known
    assert str(house.folder.cell(house.cells[0]).path) in cell


def test_only_links_of_ours_are_resolved() -> None:
    note = "orch:report (orch:report) [a](orch:report) [b](https://x/orch:all)"
    assert resolved(note, "7", "r") == (
        "orch:report (orch:report) [a](#/experiments/7/runs/r/artifacts/report/index.html"
        "?workflowType=machine_learning) [b](https://x/orch:all)"
    )
    assert view_key("kl-a b/ü'") == "orch-kl-a-b-ü-"


def test_a_cell_names_the_data_it_was_trained_on(house: House, tmp_path: Any) -> None:
    fill(house)
    prepared = tmp_path / "prepared" / "math-0a1b2c"
    prepared.mkdir(parents=True)
    (house.folder.cell(house.cells[2]).plan / "data").symlink_to(prepared)
    house.mirror()
    now = held(house)
    ((name, digest),) = now[f"cell/{house.cells[0].id}"]["datasets"]
    assert name.startswith("math")
    assert digest
    assert now[f"cell/{house.cells[2].id}"]["datasets"] == [("math", "0a1b2c")]
    (house.folder.path / "mirror.json").unlink()
    again = house.mirror()
    assert (again.created, again.updated) == (0, 0)


@pytest.mark.parametrize("noted", [True, False], ids=["after-a-mirror", "asking-mlflow"])
def test_a_pruned_cell_takes_its_run_along(house: House, noted: bool) -> None:
    fill(house)
    house.mirror()
    first = house.cells[0]
    (done,) = prune(house.folder, [house.folder.cell(first)])
    assert done.done
    if not noted:
        (house.folder.path / "mirror.json").unlink()
    report = house._replace(cells=house.cells[1:]).mirror()
    assert report.deleted == 1
    now = held(house)
    assert f"cell/{first.id}" not in now
    assert len(now) == 1 + 2 + 2
    assert house._replace(cells=house.cells[1:]).mirror().deleted == 0
    house.attempt(first, range(3))
    house.mirror()
    assert f"cell/{first.id}" in held(house)


def test_a_study_goes_with_its_last_cell_and_others_stay(house: House) -> None:
    lone = house.cells[0].model_copy(update={"studies": ("lone",)})
    cells = [lone, *house.cells[1:]]
    fill(house)
    house._replace(cells=cells).mirror()
    assert "study/lone" in held(house)
    prune(house.folder, [house.folder.cell(lone)])
    house._replace(cells=house.cells[1:]).mirror()
    now = held(house)
    assert "study/lone" not in now
    assert "study/onpolicy" in now


def test_a_cell_that_merely_left_the_spec_stays(house: House) -> None:
    fill(house)
    house.mirror()
    house._replace(cells=house.cells[1:]).mirror()
    assert f"cell/{house.cells[0].id}" in held(house)
