"""Real Ray on a real SLURM cluster of fake nodes: brought up, used, gone; and one that dies."""

import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from backends.verl import BACKEND
from orchestrator.launch.node.process_group import own_address
from orchestrator.records import Cell
from orchestrator.rundir import AttemptDir, RunFolder
from tests.backends.environments import library_python
from tests.backends.verl.cells import cell as verl_cell
from tests.cluster import Cluster, wait_for
from tests.launch.node.kit import carriers, command, has_address, wait_until_gone

HERE = Path(__file__).parent
pytestmark = pytest.mark.slow

RAY = "2.55.0"
INTERFACE = next((name for _, name in socket.if_nameindex() if has_address(name)), "lo")
SECRET = "not-for-any-file-7391"


@pytest.fixture(scope="module")
def environment() -> Path:
    return library_python("ray", no_deps=(), needs=(f"ray=={RAY}",)).parents[1]


def submit(
    cluster: Cluster, folder: RunFolder, cell: Cell, environment: Path, **env: str
) -> AttemptDir:
    """Submits a job of two nodes whose batch script is the worker; its attempt."""
    folder.path.parent.mkdir(parents=True, exist_ok=True)
    options = {
        "environments": {"verl@0.9.1": {"venv": str(environment)}},
        "env": {"PYTHONPATH": str(HERE / "standin"), **env},
        "secrets": ["STANDIN_SECRET"],
        "ray_object_store_gib": 0.1,
        "start_minutes": 3,
        "network_interface": INTERFACE,
    }
    order = folder.path.with_name(f"{folder.path.name}.json")
    order.write_text(
        json.dumps(
            {"folder": str(folder.path), "cell": cell.model_dump(mode="json"), "options": options}
        )
    )
    script = order.with_suffix(".sh")
    script.write_text(f'#!/bin/bash\nexec {sys.executable} {HERE / "drive.py"} "$1"\n')
    cluster.run(
        "env",
        f"STANDIN_SECRET={SECRET}",
        f"PYTHONPATH={HERE.parents[2]}",
        f"ORCH_TEST={folder.path}",
        "sbatch",
        "--parsable",
        "--nodes=2",
        "--ntasks=2",
        "--ntasks-per-node=1",
        "--gres=gpu:a100:4",
        "--cpus-per-task=8",
        "--output=/dev/null",
        f"--error={order}.log",
        str(script),
        str(order),
    )
    return AttemptDir(folder.cell(cell).path / "attempts" / "1", 1)


def ending(attempt: AttemptDir, log: Path, seconds: float) -> dict[str, Any]:
    path = attempt.path / "ending.json"
    try:
        name = attempt.path.parents[1].name
        wait_for(lambda: path.exists() and path.stat().st_size > 0, seconds, f"the end of {name}")
    except TimeoutError:
        said = [p.read_text(errors="replace")[-2000:] for p in (log, attempt.stderr) if p.exists()]
        pytest.fail("\n".join(said))
    told: dict[str, Any] = json.loads(path.read_text())
    return told


def test_two_runs_of_two_nodes_side_by_side(
    cluster: Cluster, tmp_path: Path, environment: Path
) -> None:
    """One does its work and is gone; the other loses a node, says which, and is gone too."""
    root = tmp_path / "a 'b\" $c β"
    good, doomed = RunFolder(root / "good"), RunFolder(root / "doomed")
    cell = verl_cell({"num_train_steps": 3}, nodes=2, gpus=4)
    attempt = submit(cluster, good, cell, environment)
    lost = submit(cluster, doomed, cell, environment, STANDIN="hold")
    scratch = [_scratch(good), _scratch(doomed)]

    told = ending(attempt, Path(f"{root / 'good'}.json.log"), 400)
    assert told["state"] == "succeeded", told
    seen = json.loads(attempt.stdout.read_text().splitlines()[-1])
    assert len({(w["node"], w["gpu"]) for w in seen}) == 8
    assert len({w["node"] for w in seen}) == 2
    assert {w["secret"] for w in seen} == {SECRET}
    assert {w["address"] for w in seen} == {own_address(INTERFACE, None)}, "on both nodes"
    assert all(w["python"].startswith(str(environment)) for w in seen)
    points = list(BACKEND.read_metrics(attempt.path))
    assert [point.step for point in points] == [1, 2, 3]
    [checkpoint] = BACKEND.find_checkpoints(good.cell(cell).checkpoints)
    assert checkpoint.step == 3
    record = json.loads((attempt.path / "nodes.json").read_text())
    assert record["nodes"] == sorted({w["node"] for w in seen})
    _written_nowhere(SECRET, root)
    wait_until_gone(ORCH_TEST=str(good.path))

    wait_for(lambda: list(BACKEND.read_metrics(lost.path)), 400, "the other run to train")
    raylet = wait_for(lambda: _raylet(doomed, rank=1), 60, "the raylet of its second node")
    os.kill(raylet, signal.SIGKILL)
    told = ending(lost, Path(f"{root / 'doomed'}.json.log"), 180)
    second = json.loads((lost.path / "nodes.json").read_text())["nodes"][1]
    assert (told["state"], told["failure"]) == ("failed", "node")
    assert told["message"].startswith(f"node {second} left the run")
    assert any((lost.path / "nodes").glob("*/raylet.*")), "Ray's logs of a failure are kept"
    wait_until_gone(ORCH_TEST=str(doomed.path))
    wait_for(lambda: not [path for path in scratch if path.exists()], 60, "their scratch to go")


def _raylet(folder: RunFolder, rank: int) -> int:
    """The process of one node's Ray; 0 while there is none."""
    found = [
        pid
        for pid, variables in carriers(ORCH_TEST=str(folder.path))
        if variables["ORCH_RANK_TOKEN"].endswith(f".{rank}") and "raylet/raylet" in command(pid)
    ]
    return found[0] if found else 0


def _scratch(folder: RunFolder) -> Path:
    """The folder of a run's sockets, on the nodes' own disk."""
    _, variables = wait_for(
        lambda: next(carriers(ORCH_TEST=str(folder.path)), None), 180, "the run to start"
    )
    base = next(Path(b) for b in (os.environ.get("TMPDIR"), "/tmp") if b and len(b) <= 30)  # noqa: S108  (sockets: short)
    return base / f"orch-{variables['ORCH_RANK_TOKEN'].partition('.')[0]}"


def _written_nowhere(secret: str, root: Path) -> None:
    files = [p for p in root.rglob("*") if p.is_file() and p.name != "stdout"]
    found = [path for path in files if secret.encode() in path.read_bytes()]
    assert not found, "a secret stands in a file"  # the stand-in itself prints it to stdout
