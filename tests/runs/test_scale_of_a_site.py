"""A machine without a cluster rehearses, unless a spec says that its libraries train there."""

from pathlib import Path

import pytest

from orchestrator.data.prepared import make_shipped
from orchestrator.errors import EnvironmentFault
from orchestrator.files import write_text
from orchestrator.identity import fingerprint
from orchestrator.launch.check import check_launchable
from orchestrator.library.prompt_recipe import of_plan
from orchestrator.plugins import load, shipped_policy, shipped_prompts
from orchestrator.runs.experiment import open_experiment, saved_experiments
from orchestrator.spec import load as load_spec
from orchestrator.spec.expand import expand
from orchestrator.spec.rehearse import rehearse
from orchestrator.spec.site_options import NodeOptions

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
SPEC = EXPERIMENTS / "real_smoke.yaml"


def test_a_site_rehearses_or_trains_as_declared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    real = open_experiment(SPEC)
    assert (real.where, real.scale, real.folder.path.name) == ("local", "full", "real_smoke")
    assert {cell.settings.backend.name for cell in real.cells} == {"trl"}
    assert real.cells == real.declared
    small = open_experiment(SPEC, ["site=local"])
    assert (small.where, small.scale, small.folder.path.name) == (
        "local",
        "micro",
        "real_smoke.micro",
    )
    assert {cell.settings.backend.name for cell in small.cells} == {"micro"}
    real.folder.open()
    write_text(real.folder.path / "spec.json", real.spec.model_dump_json())
    (again,) = saved_experiments(tmp_path / "runs")
    assert (again.where, again.scale) == ("local", "full")


def test_prompts_and_policy_ship_with_orch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made at the launch, the same each time; nobody prepares or fetches anything."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORCH_DATA_DIR", str(tmp_path / "it's data ü"))
    monkeypatch.setenv("ORCH_ENVIRONMENTS", str(tmp_path / "none"))
    real = open_experiment(SPEC)
    with pytest.raises(Exception, match=r"`orch env create trl@1\.16\.0 --cpu` makes one"):
        check_launchable(real.cells, real.folder, NodeOptions())
    cell = real.cells[0]
    plan = load("trl").translate(cell, real.folder.cell(cell).first_paths())
    recipe = of_plan(plan.files)
    file = tmp_path / "it's data ü" / recipe.prepared / "labelled" / "train.jsonl"
    before = file.read_bytes()
    assert before.count(b"\n") == 2000
    file.unlink()
    make_shipped(plan)
    assert file.read_bytes() == before
    assert (shipped_policy(cell.settings.model.path) or Path()).is_dir()
    with pytest.raises(EnvironmentFault, match="'micro' ships no policy 'nobody'"):
        shipped_policy("micro:nobody")
    with pytest.raises(EnvironmentFault, match="'micro' ships no task 'nothing'"):
        shipped_prompts("micro:nothing", None)
    assert shipped_policy("org/model") is None
    assert shipped_prompts("C:data", 3) is None


def test_cells_on_disk_are_those_of_the_spec_and_those_that_left_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wide = open_experiment(EXPERIMENTS / "comedy_full.yaml", ["seeds=[0,1]", "site=local"])
    narrow = open_experiment(EXPERIMENTS / "comedy_full.yaml", ["seeds=[0]", "site=local"])
    wide.folder.open()
    write_text(wide.folder.spec, narrow.spec.model_dump_json())
    for cell in wide.cells[::5]:
        wide.folder.cell(cell).make(cell)
    (saved,) = saved_experiments(tmp_path / "runs")
    assert sorted(saved.cells, key=str) == sorted(wide.cells[::5], key=str)


def test_libraries_that_share_one_run_are_named_by_its_axis() -> None:
    small = rehearse(expand(load_spec(EXPERIMENTS / "cross_library.yaml")))
    assert len({cell.id for cell in small}) == len(small)
    assert any(" | " in cell.axes["backend"] for cell in small)


def test_a_cell_of_the_embedded_trainer_keeps_its_id() -> None:
    """Ids that were given before there were dialects, with the policy that was shipped then."""
    backends = "studies.libraries.axes.backend=[verl@0.9.1,openrlhf@0.11.2,prime_rl@0.5.0,micro]"
    declared = expand(load_spec(EXPERIMENTS / "cross_library.yaml", ["seeds=[0]", backends]))
    own = {}
    for cell in declared:
        if cell.settings.backend.name == "micro":
            settings = rehearse([cell])[0].settings
            model = settings.model.model_copy(update={"path": "micro:amber"})
            id_ = fingerprint(settings.model_copy(update={"model": model}))
            own[cell.axes["kl"], cell.axes["beta"]] = id_
    assert own["none", "0"] == "f14fb1a6f17f"
    assert own["k1.reward", "0.05"] == "5a28b8decfb5"
    assert own["k3.loss", "0.05"] == "3d3a06278007"


def test_a_seed_is_rehearsed_as_if_it_were_alone() -> None:
    declared = expand(load_spec(EXPERIMENTS / "comedy_full.yaml", ["seeds=[0,3,7]"]))
    assert rehearse(declared) == [rehearse([cell])[0] for cell in declared]
