"""What a job does on its nodes before the trainer runs: GPUs looked at, containers.

Pyxis is not here. A program stands where orch calls it, writes down how it was called, and runs
what it was given.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.records import Cell
from tests.launch.kit import make_cell
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


PYXIS = """#!/bin/bash
# pyxis adds the options --container-* to srun and takes them away from the command
plain=()
for word; do case "$word" in
    --container-workdir=*) cd "${{word#*=}}" && echo "$word" >> "{calls}.$$";;
    --container-*) echo "$word" >> "{calls}.$$";;
    *) plain+=("$word");;
esac; done
exec {srun} "${{plain[@]}}"
"""


def stand_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> Callable[[], list[list[str]]]:
    """Put a script before a program. Return what reads the words of each call."""
    place, calls = tmp_path / "stand-ins", tmp_path / "called"
    place.mkdir()
    (place / name).write_text(text.format(calls=calls, srun=shutil.which("srun")))
    (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    return lambda: [p.read_text().splitlines() for p in sorted(tmp_path.glob("called.*"))]


def test_a_trainer_runs_in_a_container_of_pyxis_on_each_node(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = stand_in(tmp_path, monkeypatch, "srun", PYXIS)
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
    first, second = calls()
    for words in (first, second):
        assert words[0] == "--container-image=nvcr.io#nvidia/pytorch:25.06-py3"
        assert f"--container-workdir={plan}" in words
        assert f"--container-mounts={root}:{root},/data:/data" in words
        (env,) = (word for word in words if word.startswith("--container-env="))
        assert {"FAKE_ATTEMPT", "MINE", "ORCH_NODE_RANK"} <= set(env.partition("=")[2].split(","))
