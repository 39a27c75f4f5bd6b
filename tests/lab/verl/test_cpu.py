"""verl without an accelerator: what differs from the launch is listed, and nothing else differs."""

import json
import shlex
from pathlib import Path

import pytest

from backends.verl import BACKEND
from lab.cpu import CpuLaunch, recording
from lab.verl.cpu_launch import cpu_launch, split
from orchestrator.errors import UnsupportedSetting
from orchestrator.records import LaunchPlan
from orchestrator.rundir import RunFolder
from orchestrator.site.forecast import ray_shortages
from tests.backends.verl.cells import NASTY, PLACE, cell

EXTENDED = {"advantage.estimator": "reinforce"}
"""A cell that orch's own module lets verl train."""


def on_cpu(plan: LaunchPlan) -> CpuLaunch:
    launch = cpu_launch(plan, NASTY)
    assert launch is not None
    return launch


def test_every_difference_is_listed_once_and_has_a_reason() -> None:
    plan = BACKEND.translate(cell(EXTENDED), NASTY)
    launch = recording(on_cpu(plan), NASTY)
    before, after = split(plan.argv), split(launch.plan.argv)
    differs = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    listed = [each.name for each in launch.deviations if each.kind == "argument"]
    assert sorted(differs) == sorted(listed)
    variables = {each.name for each in launch.deviations if each.kind == "variable"}
    assert variables == {
        name
        for name in plan.env.keys() | launch.plan.env.keys()
        if plan.env.get(name) != launch.plan.env.get(name)
    }
    unexplained = [
        str(each)
        for each in launch.deviations
        if each.kind not in ("part", "file") and not each.why and "env_vars" not in each.name
    ]
    assert not unexplained


def test_with_processes_ray_is_real_and_its_workers_get_the_stand_ins() -> None:
    plan = BACKEND.translate(cell(EXTENDED), NASTY)
    launch = on_cpu(plan).in_processes()
    assert launch.in_processes() is launch
    modules = "orch_verl_cpu,orch_verl"
    workers = "ray_kwargs.ray_init.runtime_env.env_vars"
    arguments = split(launch.plan.argv)
    assert launch.plan.env["VERL_USE_EXTERNAL_MODULES"] == modules
    assert shlex.split(arguments[f"{workers}.VERL_USE_EXTERNAL_MODULES"]) == [modules]
    assert arguments[f"{workers}.PYTHONPATH"] == split(plan.argv)[f"{workers}.PYTHONPATH"]
    assert json.loads(launch.plan.env["RAY_OVERRIDE_RESOURCES"]) == {"GPU": 1, "CPU": plan.ray_cpus}
    unexplained = (each for each in launch.deviations if each.kind not in ("part", "file"))
    assert all(each.why for each in unexplained)
    assert not [each for each in launch.deviations if each.name == "transfer_queue"]
    assert len(arguments) == len(launch.plan.argv[3:])


def test_what_the_launch_optimises_is_untouched() -> None:
    plan = BACKEND.translate(cell(), PLACE)
    launch = cpu_launch(plan, PLACE)
    assert launch is not None
    asked = BACKEND.parse(plan.argv, plan.files)
    assert BACKEND.parse(launch.plan.argv, launch.plan.files) == asked


def test_other_releases_and_asynchrony_have_no_way_on_the_cpu() -> None:
    assert cpu_launch(BACKEND.translate(cell({"backend.version": "0.8.0"}), PLACE), PLACE) is None
    stale = cell({"max_staleness_steps": 1, "backend.version": "0.9.1"})
    with pytest.raises(UnsupportedSetting, match="max_staleness_steps"):
        cpu_launch(BACKEND.translate(stale, PLACE), PLACE)


def test_rollouts_are_written_by_the_workers_too() -> None:
    """An argument gives Ray's workers the folder of the extension: the hook lies there."""
    launch = on_cpu(BACKEND.translate(cell(EXTENDED), NASTY)).in_processes()
    recorded = recording(launch, NASTY)
    assert recorded.plan.argv == launch.plan.argv
    assert recorded.plan.env["PYTHONPATH"] == launch.plan.env["PYTHONPATH"]
    assert recorded.plan.env["ORCH_ROLLOUT_DUMP"] == f"{NASTY.attempt_dir}/rollouts"
    names = ("sitecustomize", "orch_cpu_device", "orch_rollout_dump", "orch_rollout_hook")
    assert {f"extension/{name}.py" for name in names} <= recorded.plan.files.keys()


def test_ray_is_given_the_cpus_that_verls_actors_claim() -> None:
    """Three a GPU, TransferQueue's controller and eight storage units, and one to place others.

    A second cell on one Ray waited for ever in the first one's TransferQueue.
    """
    one, eight = (
        BACKEND.translate(cell(nodes=nodes, gpus=gpus), PLACE) for nodes, gpus in ((1, 1), (2, 4))
    )
    assert (one.ray_cpus, eight.ray_cpus, one.alone_on_ray) == (13, 34, True)
    older = BACKEND.translate(cell({"backend.version": "0.8.0"}), PLACE)
    assert (older.ray_cpus, older.alone_on_ray) == (None, False)


def test_a_site_that_gives_ray_too_few_is_named(tmp_path: Path) -> None:
    folder = RunFolder.of(tmp_path, "mine", "full")
    small = {"model.name": "qwen2.5-1.5b", "model.path": "Qwen/Qwen2.5-1.5B"}  # it fits one GPU
    chosen = [cell({"backend.version": "0.9.1", **small}, nodes=1, gpus=1)]
    (shortage,) = ray_shortages(chosen, folder, {"ray_cpus_per_node": 8})
    assert "claims 13 CPUs" in shortage
    assert "wait for ever" in shortage
    assert "at least 13" in shortage
    assert not ray_shortages(chosen, folder, {"ray_cpus_per_node": 13})
    assert not ray_shortages(chosen, folder, {})
