"""argv on every node of a real job, as Prime-RL wants it: one fails, all end."""

import json
import sys
from pathlib import Path

import pytest

from orchestrator.records import Cell, LaunchPlan
from orchestrator.rundir import RunFolder
from tests.cluster import Cluster
from tests.launch.kit import make_cell
from tests.launch.node.kit import ending, submit, wait_until_gone

pytestmark = pytest.mark.slow

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


def test_both_nodes_run_it_and_the_end_of_the_first_is_the_end(
    cluster: Cluster, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path / "a 'b\" β" / "runs")
    plan = roles(counting(), "done")
    attempt = submit(cluster, folder, counting(), {"env": {"MINE": "a b"}}, plan=plan)
    assert ending(folder, attempt, 180)["state"] == "succeeded"
    told = folder.cell(counting()).path / "plan"
    seen = [json.loads((told / f"rank{n}.json").read_text()) for n in (0, 1)]
    assert seen[0]["SLURMD_NODENAME"] != seen[1]["SLURMD_NODENAME"]
    assert all(each["CUDA_VISIBLE_DEVICES"] == "0,1,2,3" for each in seen)
    assert {each["MINE"] for each in seen} == {"a b"}
    assert all(each["ORCH_SERVER_HOST"] for each in seen)
    wait_until_gone(ORCH_TEST=str(folder.path))


def test_a_role_that_fails_ends_the_others_and_says_of_what(
    cluster: Cluster, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path / "x" / "runs")
    attempt = submit(cluster, folder, counting(), {}, plan=roles(counting(), "fail"))
    told = ending(folder, attempt, 180)
    assert (told["state"], told["failure"]) == ("failed", "out_of_memory")
    assert "left the run" in told["message"]
    wait_until_gone(ORCH_TEST=str(folder.path))
