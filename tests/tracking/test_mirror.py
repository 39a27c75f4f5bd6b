"""mirror on a real MLflow: what it holds, and that it is the same however it came about."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tracking_house import T0, House, dump, dying, grow

from orchestrator.records import Cell

NASTY = ["a 0", 'a\'; echo "b"', "ü漢", "50%25 ?x=1#y&z", "a\nb"]


def test_a_run_holds_what_its_cell_is_and_did(house: House) -> None:
    house.fill()
    report = house.mirror()
    held_now = house.held
    first, _, third, fourth = house.cells
    assert set(held_now) == {
        "",
        "summary",
        *(f"cell/{cell.id}" for cell in house.cells[:3]),
    }
    assert (report.created, report.updated, report.unchanged) == (4, 0, 0)
    assert report.store == f"sqlite:///{house.database}"
    assert f"cell/{fourth.id}" not in held_now
    run = held_now[f"cell/{first.id}"]
    assert run["name"] == first.slug
    assert (run["status"], run["start"], run["end"]) == (
        "FINISHED",
        round(T0 * 1000),
        round((T0 + 600) * 1000),
    )
    wanted = {
        "kl.estimator": "k1",
        "kl.placement": "reward",
        "kl.beta": "0.1",
        "kl": "k1.reward",
        "model": "qwen2.5-7b",
        "data": "math",
        "seed": "0",
        "backend": "verl",
        "scale": "micro",
        "study": "onpolicy",
        "orch.cell_id": first.id,
        "state": "succeeded",
        "outcome": "cannot tell",
        "orch.trained_by": "micro 1",
        "orch.directory": str(house.folder.cell(first).path),
    }
    assert wanted.items() <= run["tags"].items()
    assert run["params"]["rollout.group_size"] == "5"
    assert run["params"]["optimizer.learning_rate"] == "1e-6"
    assert run["params"]["loss.clip.dual"] == "none"
    assert "k1 in reward: " in run["tags"]["mlflow.note.content"]
    failed = held_now[f"cell/{third.id}"]
    assert failed["status"] == "FAILED"
    assert "boom" in failed["tags"]["mlflow.note.content"]


def test_curves_are_the_merged_metrics_and_scores_stand_at_their_step(house: House) -> None:
    house.fill()
    report = house.mirror()
    points = house.held[f"cell/{house.cells[0].id}"]["points"]
    starts = [T0] * 3 + [T0 + 500] * 5
    assert points["train/reward_mean"] == [
        (step, round((starts[step] + step) * 1000), repr(step / 10)) for step in range(8)
    ]
    assert [(s, v) for s, _, v in points["eval/sort/mean_at_4"]] == [(4, "0.25"), (7, "0.625")]
    assert [(s, v) for s, _, v in points["eval/in_domain/mean_at_4"]] == [(4, "0.25"), (7, "0.625")]
    assert report.rows == (8 + 8 + 2) * 3 + 2 * 2 * 4


def test_artifacts_hold_the_cell_the_plan_the_ledger_and_the_items(house: House) -> None:
    house.fill()
    house.mirror()
    held_now = house.held
    artifacts = held_now[f"cell/{house.cells[0].id}"]["artifacts"]
    assert set(artifacts) == {
        "cell.json",
        "plan.json",
        "ledger.json",
        "attempts.json",
        "scores.json",
        "eval/sort-4-0.jsonl",
        "eval/sort-7-0.jsonl",
        "eval/sort-7-1.jsonl",
    }
    assert b'"kl.beta"' in artifacts["ledger.json"]
    assert house.cells[0].id.encode() in artifacts["cell.json"]
    assert held_now["summary"]["artifacts"]["report/index.html"] == "<p>β</p>".encode()
    assert b'"question"' in held_now["summary"]["artifacts"]["spec.json"]


def test_no_secret_of_a_plan_leaves_the_run_directory(house: House) -> None:
    house.fill()
    house.mirror()
    plan = house.held[f"cell/{house.cells[0].id}"]["artifacts"]["plan.json"]
    assert b'"OMP_NUM_THREADS": "1"' in plan
    assert b"hush" in (house.folder.cell(house.cells[0]).plan / "plan.json").read_bytes()
    everything = [
        path.read_bytes()
        for path in (house.folder.path.parent / "mlartifacts").rglob("*")
        if path.is_file()
    ]
    assert not any(b"hush" in raw for raw in [*everything, house.database.read_bytes()])


def test_a_growing_cell_is_appended_to(house: House) -> None:
    cell = house.cells[0]
    attempt = house.attempt(cell, range(4), state=None)
    claim = house.folder.cell(cell).take_claim()
    with claim:
        house.mirror()
        running = house.held[f"cell/{cell.id}"]
        assert (running["status"], running["end"]) == ("RUNNING", None)
        grow(attempt, range(4, 6))
        report = house.mirror()
    assert (report.created, report.rows) == (0, 2 * 3)
    points = house.held[f"cell/{cell.id}"]["points"]["train/entropy"]
    assert [step for step, _, _ in points] == list(range(6))


def test_scores_that_come_later_are_appended(house: House) -> None:
    cell = house.cells[0]
    house.attempt(cell, range(4))
    house.mirror()
    house.score(cell, 3, 0.5)
    report = house.mirror()
    assert (report.created, report.replaced, report.rows) == (0, 0, 4)


def entropies(house: House, cell: Cell) -> list[tuple[int, str]]:
    points = house.held[f"cell/{cell.id}"]["points"]["train/entropy"]
    return [(step, value) for step, _, value in points]


def test_a_resumed_cell_has_the_values_of_its_last_attempt(house: House) -> None:
    """As on GPUs, where training from the same checkpoint differs in the last digits."""
    cell = house.cells[0]
    house.attempt(cell, range(6), state="preempted")
    house.mirror()
    other = {"train/reward_mean": 0.25, "train/entropy": 0.125, "eval/accuracy/a": 0.5}
    house.attempt(cell, range(3, 8), started=T0 + 500, values=lambda _: other)
    assert house.mirror().replaced == 1
    wanted = [(step, repr(1 / (1 + step))) for step in range(3)]
    assert entropies(house, cell) == wanted + [(step, "0.125") for step in range(3, 8)]
    assert house.mirror().unchanged == 2
    assert_rebuilt_is_equal(house)


def test_a_cell_that_was_removed_and_trained_anew_is_another_run(house: House) -> None:
    cell = house.cells[0]
    house.attempt(cell, range(6))
    house.mirror()
    shutil.rmtree(house.folder.cell(cell).path)
    house.attempt(cell, range(8), started=T0 + 500)
    assert house.mirror().replaced == 1
    assert_rebuilt_is_equal(house)
    assert [step for step, _ in entropies(house, cell)] == list(range(8))


def assert_rebuilt_is_equal(house: House) -> None:
    """A database made anew from the run directories holds the same."""
    before = house.held
    fresh = house.folder.path.parent / "fresh.db"
    shutil.copy(house.migrated, fresh)
    house.mirror(f"sqlite:///{fresh}")
    assert dump(f"sqlite:///{fresh}", house.folder.experiment) == before


CALLS = [
    "create_experiment",
    "search_runs",
    "create_run",
    "log_batch",
    "log_artifacts",
    "set_terminated",
    "set_tag",
]


@pytest.fixture(scope="module")
def filled(
    make_house: Callable[..., House], tmp_path_factory: pytest.TempPathFactory
) -> tuple[House, dict[str, Any]]:
    """An experiment with runs in every state, and what MLflow holds of it after an undisturbed
    mirror. For tests that mirror it into databases of their own."""
    house = make_house(tmp_path_factory.mktemp("filled") / "runs")
    house.fill()
    house.attempt(house.cells[3], range(3), state=None)
    house.mirror()
    return house, house.held


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
def test_a_crash_at_any_call_leaves_nothing_double(
    filled: tuple[House, dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
) -> None:
    """Dies before and after the first call, then the second, ... until a pass gets through; then
    compares."""
    from mlflow.tracking import MlflowClient

    house, undisturbed = filled
    at = f"sqlite:///{shutil.copy(house.migrated, tmp_path / 'own.db')}"
    passes = 0
    while True:
        real = getattr(MlflowClient, call)
        deadly = dying(real, passes // 2 + 1, after=passes % 2 == 1)
        with monkeypatch.context() as patched:
            patched.setattr(MlflowClient, call, deadly)
            try:
                house.mirror(at)
                break
            except KeyboardInterrupt:
                passes += 1
    assert passes > 0, f"{call} is never called"
    house.mirror(at)
    assert dump(at, house.folder.experiment) == undisturbed


def test_a_crash_followed_by_a_rewritten_history_leaves_no_stray_point(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    cell = house.cells[0]
    house.attempt(cell, range(6), state="preempted")
    # its status, after that of the summary
    deadly = dying(MlflowClient.set_terminated, 2, after=False)
    with monkeypatch.context() as patched:
        patched.setattr(MlflowClient, "set_terminated", deadly)
        with pytest.raises(KeyboardInterrupt):
            house.mirror()
    logged = house.held[f"cell/{cell.id}"]
    assert len(logged["points"]["train/entropy"]) == 6
    assert "orch.ingested" not in logged["tags"]
    house.attempt(cell, range(3, 8), started=T0 + 500)
    house.mirror()
    assert entropies(house, cell) == [(step, repr(1 / (1 + step))) for step in range(8)]


def test_what_a_person_changed_is_mended_and_their_own_tags_are_kept(house: House) -> None:
    from mlflow.tracking import MlflowClient

    house.fill()
    house.mirror()
    client = MlflowClient(tracking_uri=f"sqlite:///{house.database}")
    found = client.get_experiment_by_name(house.folder.experiment)
    key = f"cell/{house.cells[0].id}"
    (run,) = client.search_runs([found.experiment_id], f"tags.`orch.key` = '{key}'")
    client.set_tag(run.info.run_id, "favourite", "yes")
    client.set_tag(run.info.run_id, "kl.beta", "0.7")
    report = house.mirror()
    assert (report.updated, report.unchanged) == (1, 3)
    mended = house.held[key]
    assert mended["tags"]["kl.beta"] == "0.1"
    assert mended["tags"]["favourite"] == "yes"


def test_an_axis_that_left_the_spec_loses_its_tag(house: House) -> None:
    cell = house.cells[0]
    house.attempt(cell, range(3))
    more = cell.model_copy(update={"axes": {**cell.axes, "clip": "0.2"}})
    house._replace(cells=[more]).mirror()
    assert house.held[f"cell/{cell.id}"]["tags"]["clip"] == "0.2"
    house.mirror()
    assert "clip" not in house.held[f"cell/{cell.id}"]["tags"]


def test_a_deleted_experiment_comes_back(house: House) -> None:
    from mlflow.tracking import MlflowClient

    house.fill()
    house.mirror()
    before = house.held
    client = MlflowClient(tracking_uri=f"sqlite:///{house.database}")
    client.delete_experiment(client.get_experiment_by_name(house.folder.experiment).experiment_id)
    house.mirror()
    assert house.held == before


def test_deleted_artifacts_come_back(house: House) -> None:
    house.fill()
    house.mirror()
    before = house.held
    shutil.rmtree(house.folder.path.parent / "mlartifacts")
    house.mirror()
    assert house.held == before


@pytest.mark.parametrize("name", NASTY)
def test_any_runs_folder_will_do(
    make_house: Callable[..., House], tmp_path: Path, name: str
) -> None:
    house = make_house(tmp_path / name / "runs")
    house.fill()
    house.mirror()
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert len(house.held) == 5
    assert len(house.held[f"cell/{house.cells[0].id}"]["artifacts"]) == 8
    assert house.mirror().unchanged == 4


def ids(house: House) -> dict[str, str]:
    """Key -> id of every run, deleted ones too."""
    from mlflow.entities import ViewType
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{house.database}")
    found = client.search_experiments(ViewType.ALL)
    every = client.search_runs([one.experiment_id for one in found], run_view_type=ViewType.ALL)
    return {run.data.tags["orch.key"]: run.info.run_id for run in every}


def test_a_runs_folder_that_was_moved_keeps_its_runs(house: House, tmp_path: Path) -> None:
    house.fill()
    house.mirror()
    before = ids(house)
    house.folder.path.parent.rename(tmp_path / "moved")
    moved = house._replace(folder=type(house.folder)(tmp_path / "moved" / "test.micro"))
    report = moved.mirror()
    assert (report.created, report.deleted) == (0, 0)
    assert ids(moved) == before
    assert not (tmp_path / "runs").exists()
    run = moved.held[f"cell/{house.cells[0].id}"]
    assert len(run["artifacts"]) == 8
    assert run["tags"]["orch.directory"] == str(moved.folder.cell(house.cells[0]).path)
    assert moved.mirror().unchanged == 4


def test_a_copy_of_a_runs_folder_keeps_its_runs_and_leaves_the_first_alone(
    house: House, tmp_path: Path
) -> None:
    house.fill()
    house.mirror()
    before, runs_before = house.held, ids(house)
    shutil.copytree(tmp_path / "runs", tmp_path / "copy")
    copy = house._replace(folder=type(house.folder)(tmp_path / "copy" / "test.micro"))
    copy.score(house.cells[2], 1, 0.5)
    assert copy.mirror().created == 0
    assert ids(copy) == runs_before
    assert house.held == before


def test_mlflow_holds_what_is_compared_and_all_on_demand(house: House) -> None:
    """What is added later is there from its first step."""
    cell = house.cells[0]
    house.attempt(
        cell,
        range(4),
        values=lambda step: {
            "train/reward_mean": step,
            "train/policy_loss": -step,
            "train/learning_rate": 0.5,
            "eval/accuracy_predicted": 0.75,
            "eval/accuracy/a": step,
            "train/ratio_max": 1 + step,
        },
    )
    house.mirror()
    run = house.held[f"cell/{cell.id}"]
    off_policy = cell.settings.max_staleness_steps or cell.settings.batch.num_minibatches > 1
    assert set(run["points"]) == {
        "train/reward_mean",
        "eval/accuracy/a",
        "eval/accuracy_predicted",
        *(["train/ratio_max"] if off_policy else []),
    }
    site = house.spec.site.model_copy(update={"tracking_metrics": "all"})
    wide = house._replace(spec=house.spec.model_copy(update={"site": site}))
    report = wide.mirror()
    assert (report.created, report.replaced) == (0, 0)
    run = house.held[f"cell/{cell.id}"]
    assert [step for step, _, _ in run["points"]["train/policy_loss"]] == [0, 1, 2, 3]
    assert [step for step, _, _ in run["points"]["train/reward_mean"]] == [0, 1, 2, 3]


def test_nan_infinity_and_foreign_names(house: House) -> None:
    cell = house.cells[0]
    house.attempt(
        cell,
        range(2),
        values=lambda step: {"train/entropy": math.nan, "eval/a b+c@3": math.inf, "eval/é": step},
    )
    house.mirror()
    points = house.held[f"cell/{cell.id}"]["points"]
    assert {name: [v for _, _, v in rows] for name, rows in points.items()} == {
        "train/entropy": ["nan"] * 2,
        "eval/a b_x2bc_at_3": ["nan"] * 2,
        "eval/é": ["0.0", "1.0"],
    }
    assert_rebuilt_is_equal(house)


def test_long_texts_are_cut_visibly(house: House) -> None:
    cell = house.cells[0]
    data = cell.settings.data.model_copy(update={"instruction": "x" * 9000})
    long = cell.model_copy(
        update={
            "settings": cell.settings.model_copy(update={"data": data}),
            "axes": {**cell.axes, "note": "y" * 9000},
        }
    )
    house.attempt(long, range(2))
    house._replace(cells=[long]).mirror()
    run = house.held[f"cell/{cell.id}"]
    assert len(run["params"]["data.instruction"]) == 6000
    assert len(run["tags"]["note"]) == 8000
    assert run["tags"]["note"].endswith("(cut here: 9,000 characters in all)")


def test_nothing_launched_makes_no_store(house: House) -> None:
    house.database.unlink()
    report = house.mirror()
    assert (report.created, report.unchanged) == (0, 0)
    assert not house.database.exists()
