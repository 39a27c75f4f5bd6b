"""SkyPilot's parser reads the tasks, and what they run trains a cell. No cloud is here."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import orch

from orchestrator.errors import OrchError, SpecError
from orchestrator.launch.skypilot.tasks import CloudOptions, planned_jobs, read_options, task, tasks
from orchestrator.launch.slurm import poll
from orchestrator.records import Cell
from orchestrator.rundir import RunFolder
from tests.backends.environments import library_python
from tests.launch.kit import HOUSE, make_cell

RELEASE = "skypilot==0.14.1"
ON_GPUS = {"gpus_per_node": 4, "gpu": "a100-80gb"}


def cloud(**more: object) -> CloudOptions:
    plain = {"bucket": "s3://lab-runs/orch", "setup": ["pip install orch"], **more}
    return CloudOptions.model_validate(plain)


def run(plain: dict[str, Any], mount: Path) -> "subprocess.Popen[bytes]":
    """Run a task as SkyPilot would: its variables, its lines of shell, the bucket where it is."""
    envs = {name: str(text) for name, text in plain["envs"].items()}
    envs["ORCH_RUN_FOLDER"] = envs["ORCH_RUN_FOLDER"].replace("/orch-runs", str(mount))
    return subprocess.Popen(
        ["/bin/bash", "-c", plain["run"]],
        env={**os.environ, "PYTHONPATH": str(HOUSE), **envs},
        cwd=mount,
    )


def trained(cell: Cell, mount: Path) -> int:
    return run(task(cell, "test", cloud(python=sys.executable)), mount).wait(timeout=100)


def test_a_task_trains_its_cell_and_counts_its_tries(tmp_path: Path, fake: object) -> None:
    folder = RunFolder(tmp_path / "test")
    good, bad = make_cell(0), make_cell(1, "fail")
    assert trained(good, tmp_path) == 0
    assert folder.cell(good).state(poll=poll.polled_state).state == "succeeded"
    assert "starting at unit 0" in folder.cell(good).attempts()[0].stdout.read_text()
    assert trained(good, tmp_path) == 0, "it is trained already"
    assert len(folder.cell(good).attempts()) == 1
    assert [trained(bad, tmp_path) for _ in range(2)] == [75, 1], "a crash is tried again once"
    assert folder.cell(bad).state(poll=poll.polled_state).state == "failed"
    assert trained(make_cell(2, "config"), tmp_path) == 1, "it would fail again"


def test_a_machine_that_is_taken_away_is_followed_by_one_that_goes_on(
    tmp_path: Path, fake: object
) -> None:
    cell = make_cell(0, "slow", 60)
    cell_dir = RunFolder(tmp_path / "test").cell(cell)
    first = run(task(cell, "test", cloud(python=sys.executable)), tmp_path)
    units, deadline = cell_dir.checkpoints / "units", time.monotonic() + 60
    while not units.exists() or len(units.read_text().splitlines()) < 5:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    seen = cell_dir.state(poll=poll.polled_state)
    assert (seen.state, seen.fault[:22]) == ("unknown", "SkyPilot started it: `")
    assert cell_dir.state().state == "submitted", "and nobody here starts it"
    assert trained(cell, tmp_path) == 0
    steps = [int(line.split()[0]) for line in units.read_text().splitlines()]
    assert steps == list(range(1, 61))


def test_a_cloud_file_tells_all_its_faults_and_nodes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "cloud.yaml").write_text("bucket: /data\nuse_spots: true\nsetup: []\n")
    with pytest.raises(SpecError) as told:
        read_options(tmp_path / "cloud.yaml")
    assert all(word in str(told.value) for word in ("bucket", "use_spots", "setup"))
    assert "use_spot" in str(told.value)
    wide = [make_cell(0), make_cell(1, resources={"num_nodes": 4, "gpus_per_node": 4})]
    with pytest.raises(OrchError, match=r"1 of 2 cells take more GPUs than gpus_per_machine \(8\)"):
        tasks(wide, "x", cloud())
    both = make_cell(1, resources={"num_nodes": 2, "gpus_per_node": 4})
    ((name, plain),) = tasks([both], "x", cloud()).items()
    assert name == both.directory
    assert plain["resources"]["accelerators"] == "A100-80GB:8", "two nodes of four are one of eight"
    assert Cell.model_validate_json(plain["envs"]["ORCH_CELL"]).resources.num_nodes == 1
    (job,) = planned_jobs([make_cell(n, resources=ON_GPUS) for n in range(3)], cloud(cpus="32+"))
    assert (job.cells, job.gpus_per_node, job.cpus) == (3, 4, 32)


PARSE = """
import json, sys, sky
for path in sys.argv[1:]:
    task = sky.Task.from_yaml(path)
    (resources,) = task.resources
    (mount, storage), = task.storage_mounts.items()
    print(json.dumps([task.name, resources.accelerators, resources.use_spot,
        resources.job_recovery, mount, storage.mode.value, task.envs["ORCH_RUN_FOLDER"], task.run,
        json.loads(task.envs["ORCH_CELL"])["id"]]))
"""


@pytest.mark.slow
def test_skypilots_own_parser_takes_what_the_command_writes(tmp_path: Path) -> None:
    python = library_python("skypilot", no_deps=(), needs=(RELEASE,))
    plain = {"bucket": "s3://lab-runs/orch", "setup": ["pip install orch"], "use_spot": True}
    (tmp_path / "cloud.yaml").write_text(yaml.safe_dump({**plain, "secrets": ["HF_TOKEN"]}))
    spec = ("comedy_full", "cloud.yaml", "-w", "backend=verl", "-w", "seed=0", "-o", "made")
    done = orch(tmp_path, "skypilot", *spec)
    assert done.returncode == 0, done.stderr
    assert "`sky jobs launch` takes --secret HF_TOKEN besides" in done.stdout
    assert done.stderr.endswith("Next: sky jobs launch --yes --detach-run made/<cell>.yaml\n")
    assert "written, not launched" in done.stderr
    files = sorted((tmp_path / "made").iterdir())
    told = subprocess.run(
        [str(python), "-c", PARSE, *map(str, files)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, "HOME": str(tmp_path), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"},
    )
    assert told.returncode == 0, told.stderr
    lines = [json.loads(line) for line in told.stdout.splitlines() if line.startswith("[")]
    assert len(lines) == len(files) > 5
    for path, (name, gpus, spot, recovery, mount, mode, folder, run_, cell) in zip(
        files, lines, strict=True
    ):
        assert name.endswith(path.stem.rpartition("-")[2])
        assert gpus == {"A100-80GB": 8}
        assert spot is True
        assert recovery["recover_on_exit_codes"] == [75]
        assert (mount, mode, folder) == ("/orch-runs", "MOUNT_CACHED", "/orch-runs/comedy_full")
        assert run_.strip() == "exec python3 -P -m orchestrator.launch.skypilot.worker"
        assert cell == path.stem.rpartition("-")[2]
