"""What a job does on its nodes before the trainer runs: GPUs looked at, containers.

Pyxis is not here. A program stands where orch calls it, writes down how it was called, and runs
what it was given.
"""

import json
import os
import shutil
from pathlib import Path

import pytest

from orchestrator.records import Cell
from tests.launch.kit import make_cell, program
from tests.launch.node.kit import wait_until_gone
from tests.launch.slurm.conftest import Site

TELL = """program:
import os, pathlib
own = pathlib.Path(f"rank{os.environ.get('ORCH_NODE_RANK', '0')}.{os.environ['SLURMD_NODENAME']}")
own.write_text(os.getcwd())
import time
while len(list(pathlib.Path().glob("rank*"))) < %d: time.sleep(0.1)
"""


def on_gpus(nodes: int = 1, seed: int = 0) -> Cell:
    resources = {"num_nodes": nodes, "gpus_per_node": 4}
    return make_cell(seed, TELL % nodes, resources=resources)


def ranks(site: Site, cell: Cell) -> dict[str, str]:
    """Node of each rank, from what the program wrote into its folder."""
    plan = site.folder.cell(cell).path / "plan"
    return dict(path.name.split(".") for path in plan.glob("rank*"))


def test_a_bad_gpu_is_a_bad_node_and_the_cell_goes_elsewhere(site: Site) -> None:
    """On the first node of a job, and on its second, which is asked by its own agent."""
    site.cluster.spoil("a100-0", "0, 81153, 81920, 7\n1, 1, 81920, 0\n")
    alone = on_gpus()
    site.set(gres="gpu:a100:4", memory_gib=0.2, exclude="a100-[2-3]", retries={"node": 1})
    site.start(alone)
    seen = site.wait(alone)[alone.id]
    assert seen.state == "succeeded", site.words(alone)
    first, _second = site.attempts(alone)
    record = first.read_exit()
    assert (record.failure, record.host) == ("node", "a100-0")
    assert record.message.startswith("node a100-0: GPU 0 has 7 uncorrectable ECC errors; GPU 1 has")
    assert ranks(site, alone) == {"rank0": "a100-1"}

    site.cluster.spoil("a100-0", "0, 9, 9, 0\n1, 9, 9, 0\n2, 9, 9, 0\n3, 9, 9, 0\n")
    site.cluster.spoil("a100-1", "0, 81153, 81920, 0\n")
    both = on_gpus(2, seed=1)
    site.set(exclude="a100-3")
    site.start(both)
    seen = site.wait(both)[both.id]
    assert seen.state == "succeeded", site.words(both)
    record = site.attempts(both)[0].read_exit()
    assert (record.failure, record.host) == ("node", "a100-1"), record
    assert "node a100-1: nvidia-smi lists 1 of the 4 GPUs of this run" in record.message
    assert set(ranks(site, both).values()) >= {"a100-0", "a100-2"}


ROLE = """program:
import json, os, sys, time
rank, how = os.environ["ORCH_NODE_RANK"], %r
told = {n: os.environ.get(n) for n in ("ORCH_SERVER_HOST", "SLURMD_NODENAME",
        "CUDA_VISIBLE_DEVICES", "MINE")}
open(f"rank{rank}.json", "w").write(json.dumps(told))
if rank == "1" and how == "fail":
    sys.exit("torch.OutOfMemoryError: CUDA out of memory")
if rank == "0" and how == "done":
    while not os.path.exists("rank1.json"):
        time.sleep(0.1)
    sys.exit(0)
time.sleep(300)
"""


def test_both_nodes_run_it_until_the_first_ends_or_one_fails(site: Site) -> None:
    """argv on every node of a job, as Prime-RL wants it."""
    resources = {"num_nodes": 2, "gpus_per_node": 4}
    good = make_cell(0, ROLE % "done", resources=resources)
    bad = make_cell(1, ROLE % "fail", resources=resources)
    mine = f"a b {site.folder.path}"
    site.set(gres="gpu:a100:4", memory_gib=0.2, env={"MINE": mine})
    site.start(good, bad)
    seen = site.wait(good, bad)
    assert seen[good.id].state == "succeeded", site.words(good)
    plan = site.folder.cell(good).path / "plan"
    told = [json.loads((plan / f"rank{n}.json").read_text()) for n in (0, 1)]
    assert told[0]["SLURMD_NODENAME"] != told[1]["SLURMD_NODENAME"]
    assert all(each["CUDA_VISIBLE_DEVICES"] == "0,1,2,3" for each in told)
    assert {each["MINE"] for each in told} == {mine}
    assert all(each["ORCH_SERVER_HOST"] for each in told)
    failed = seen[bad.id].exit
    assert (failed.state, failed.failure) == ("failed", "out_of_memory")
    assert "left the run" in failed.message
    wait_until_gone(MINE=mine)


PYXIS = """# pyxis adds the options --container-* to srun and takes them away from the command
plain=()
for word; do case "$word" in
    --container-workdir=*) cd "${{word#*=}}" && echo "$word" >> "{calls}.$$";;
    --container-*) echo "$word" >> "{calls}.$$";;
    *) plain+=("$word");;
esac; done
exec {srun} "${{plain[@]}}"
"""


def test_a_trainer_runs_in_a_container_of_pyxis_on_each_node(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = PYXIS.format(calls=tmp_path / "called", srun=shutil.which("srun"))
    program(tmp_path / "stand-ins" / "srun", body)
    monkeypatch.setenv("PATH", f"{tmp_path / 'stand-ins'}:{os.environ['PATH']}")
    site.folder = type(site.folder)(tmp_path / "a b" / "runs" / "test")
    image = {"image": "nvcr.io#nvidia/pytorch:25.06-py3", "runtime": "pyxis", "binds": ["/data"]}
    site.set(gres="gpu:a100:4", memory_gib=0.2, environments={"fake": image}, env={"MINE": "x"})
    cell = on_gpus(2)
    site.start(cell)
    assert site.wait(cell)[cell.id].state == "succeeded", site.words(cell)
    seen, root = ranks(site, cell), site.folder.path
    assert seen.keys() == {"rank0", "rank1"}
    assert seen["rank0"] != seen["rank1"], "each container is a step on its own node"
    plan = site.folder.cell(cell).path / "plan"
    first, second = (path.read_text().splitlines() for path in tmp_path.glob("called.*"))
    for words in (first, second):
        assert words[0] == "--container-image=nvcr.io#nvidia/pytorch:25.06-py3"
        assert f"--container-workdir={plan}" in words
        assert f"--container-mounts={root}:{root},/data:/data" in words
        (env,) = (word for word in words if word.startswith("--container-env="))
        assert {"FAKE_ATTEMPT", "MINE", "ORCH_NODE_RANK"} <= set(env.partition("=")[2].split(","))
