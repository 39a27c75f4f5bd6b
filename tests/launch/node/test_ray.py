"""Real Ray on a real SLURM cluster of fake nodes: brought up, used, gone; and one that dies."""

import json
import os
import signal
import socket
from pathlib import Path

import pytest

from backends.verl import BACKEND
from orchestrator.launch.node.process_group import own_address
from orchestrator.rundir import RunFolder
from tests.backends.environments import library_python
from tests.backends.verl.cells import cell as verl_cell
from tests.cluster import Cluster, wait_for
from tests.launch.node.kit import carriers, ending, has_address, submit, wait_until_gone

STANDIN = {"PYTHONPATH": str(Path(__file__).with_name("standin"))}
pytestmark = pytest.mark.slow

RAY = "2.55.0"
INTERFACE = next((name for _, name in socket.if_nameindex() if has_address(name)), "lo")
SECRET = "not-for-any-file-7391"


@pytest.fixture(scope="module")
def environment() -> Path:
    return library_python("ray", no_deps=(), needs=(f"ray=={RAY}",)).parents[1]


def test_two_runs_of_two_nodes_side_by_side(
    cluster: Cluster, tmp_path: Path, environment: Path
) -> None:
    """One does its work and is gone; the other loses a node, says which, and is gone too."""
    root = tmp_path / "a 'b\" $c β"
    good, doomed = RunFolder(root / "good"), RunFolder(root / "doomed")
    cell = verl_cell({"num_train_steps": 3}, nodes=2, gpus=4)
    options = {
        "environments": {"verl@0.9.1": {"venv": str(environment)}},
        "secrets": ["STANDIN_SECRET"],
        "ray_object_store_gib": 0.1,
        "start_minutes": 3,
        "network_interface": INTERFACE,
    }
    attempt, lost = (
        submit(cluster, folder, cell, {**options, "env": env}, STANDIN_SECRET=SECRET)
        for folder, env in ((good, STANDIN), (doomed, {**STANDIN, "STANDIN": "hold"}))
    )
    scratch = [_scratch(good), _scratch(doomed)]

    told = ending(good, attempt, 400)
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
    told = ending(doomed, lost, 180)
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
        for pid, words, variables in carriers(ORCH_TEST=str(folder.path))
        if variables["ORCH_RANK_TOKEN"].endswith(f".{rank}") and "raylet/raylet" in words[0]
    ]
    return found[0] if found else 0


def _scratch(folder: RunFolder) -> Path:
    """The folder of a run's sockets, on the nodes' own disk."""
    _, _, variables = wait_for(
        lambda: next(carriers(ORCH_TEST=str(folder.path)), None), 180, "the run to start"
    )
    base = next(Path(b) for b in (os.environ.get("TMPDIR"), "/tmp") if b and len(b) <= 30)  # noqa: S108  (sockets: short)
    return base / f"orch-{variables['ORCH_RANK_TOKEN'].partition('.')[0]}"


def _written_nowhere(secret: str, root: Path) -> None:
    files = [p for p in root.rglob("*") if p.is_file() and p.name != "stdout"]
    found = [path for path in files if secret.encode() in path.read_bytes()]
    assert not found, "a secret stands in a file"  # the stand-in itself prints it to stdout
