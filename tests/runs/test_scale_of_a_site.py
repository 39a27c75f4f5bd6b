"""A machine without a cluster rehearses, unless a spec says that its libraries train there."""

from pathlib import Path

import pytest

from orchestrator.data.prepared import make_shipped
from orchestrator.errors import EnvironmentFault
from orchestrator.files import write_text
from orchestrator.launch.check import check_launchable
from orchestrator.library.prompt_recipe import of_plan
from orchestrator.plugins import load, shipped_policy, shipped_prompts
from orchestrator.runs.experiment import open_experiment, saved_experiments
from orchestrator.spec.site_options import NodeOptions

ROOT = Path(__file__).parents[2]
SPEC = ROOT / "experiments" / "real_smoke.yaml"


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
    wide = open_experiment(ROOT / "experiments" / "comedy_full.yaml", ["seeds=[0,1]", "site=local"])
    narrow = open_experiment(ROOT / "experiments" / "comedy_full.yaml", ["seeds=[0]", "site=local"])
    wide.folder.open()
    write_text(wide.folder.spec, narrow.spec.model_dump_json())
    for cell in wide.cells[::5]:
        wide.folder.cell(cell).make(cell)
    (saved,) = saved_experiments(tmp_path / "runs")
    assert sorted(saved.cells, key=str) == sorted(wide.cells[::5], key=str)
