"""argv on every node of a real job, as Prime-RL wants it: one fails, all end."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.records import Cell, LaunchPlan
from tests.cluster import Cluster, wait_for
from tests.launch.kit import make_cell
from tests.launch.node.kit import wait_until_gone

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
ROLE = """\
import json, os, sys, time
rank = os.environ["ORCH_NODE_RANK"]
told = {n: os.environ.get(n) for n in ("ORCH_SERVER_HOST", "SLURMD_NODENAME",
        "CUDA_VISIBLE_DEVICES", "MINE")}
open(f"rank{rank}.json", "w").write(json.dumps(told))
if rank == "1" and sys.argv[1] == "fail":
    sys.exit("torch.OutOfMemoryError: CUDA out of memory")
if rank == "0" and sys.argv[1] == "done":
    while not os.path.exists("rank1.json"):
        time.sleep(0.1)
    sys.exit(0)
time.sleep(300)
"""
WORKER = """\
import json, sys
from pathlib import Path
from orchestrator.launch import node
from orchestrator.rundir import RunFolder
from orchestrator.records import Cell, LaunchPlan
order = json.loads(Path(sys.argv[1]).read_text())
cell, folder = Cell.model_validate(order["cell"]), RunFolder(Path(order["folder"]))
folder.open()
home = folder.cell(cell)
home.make(cell)
attempt = home.new_attempt()
plan = LaunchPlan.model_validate(order["plan"])
home.write(cell, plan)
ending = node.run(plan, attempt, cell, order["options"])
(attempt.path / "ending.json").write_text(json.dumps(ending._asdict()))
"""


def counting() -> Cell:
    return make_cell(resources={"num_nodes": 2, "gpus_per_node": 4})


def roles(cell: Cell, how: str) -> LaunchPlan:
    return LaunchPlan(
        cell_id=cell.id,
        backend="fake",
        version="1",
        bring_up="ranks",
        argv=(sys.executable, "-c", ROLE, how),
    )


def start(cluster: Cluster, root: Path, cell: Cell, plan: LaunchPlan, **options: object) -> Path:
    """Submits a job of two nodes; the folder of its attempt."""
    root.mkdir(parents=True, exist_ok=True)
    order = {
        "cell": cell.model_dump(mode="json"),
        "folder": str(root / "runs"),
        "plan": plan.model_dump(mode="json"),
        "options": {"env": {"MINE": "a b"}, **options},
    }
    (root / "order.json").write_text(json.dumps(order))
    (root / "worker.py").write_text(WORKER)
    (root / "job.sh").write_text(f"#!/bin/bash\nexec {sys.executable} worker.py order.json\n")
    cluster.run(
        "env",
        f"PYTHONPATH={HERE.parents[2]}",
        f"ORCH_TEST={root}",
        "sbatch",
        f"--chdir={root}",
        "--nodes=2",
        "--ntasks=2",
        "--ntasks-per-node=1",
        "--gres=gpu:a100:4",
        "--output=/dev/null",
        f"--error={root}/log",
        str(root / "job.sh"),
    )
    return root / "runs" / "cells" / cell.directory / "attempts" / "1"


def ended(attempt: Path) -> dict[str, Any]:
    path = attempt / "ending.json"
    wait_for(lambda: path.exists() and path.stat().st_size > 0, 180, f"the end of {attempt}")
    told: dict[str, Any] = json.loads(path.read_text())
    return told


def test_both_nodes_run_it_and_the_end_of_the_first_is_the_end(
    cluster: Cluster, tmp_path: Path
) -> None:
    root = tmp_path / "a 'b\" β"
    attempt = start(cluster, root, counting(), roles(counting(), "done"))
    assert ended(attempt)["state"] == "succeeded"
    seen = [json.loads((attempt.parents[1] / "plan" / f"rank{n}.json").read_text()) for n in (0, 1)]
    assert seen[0]["SLURMD_NODENAME"] != seen[1]["SLURMD_NODENAME"]
    assert all(each["CUDA_VISIBLE_DEVICES"] == "0,1,2,3" for each in seen)
    assert {each["MINE"] for each in seen} == {"a b"}
    assert all(each["ORCH_SERVER_HOST"] for each in seen)
    wait_until_gone(ORCH_TEST=str(root))


def test_a_role_that_fails_ends_the_others_and_says_of_what(
    cluster: Cluster, tmp_path: Path
) -> None:
    root = tmp_path / "x"
    attempt = start(cluster, root, counting(), roles(counting(), "fail"))
    told = ended(attempt)
    assert (told["state"], told["failure"]) == ("failed", "out_of_memory")
    assert "left the run" in told["message"]
    wait_until_gone(ORCH_TEST=str(root))
