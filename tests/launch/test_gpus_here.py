"""One machine with GPUs and no scheduler: nvidia-smi is a stand-in, everything else is real."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import orch

from orchestrator.errors import EnvironmentFault
from orchestrator.launch.local import launch
from orchestrator.library.protocol import Backend
from orchestrator.rundir import RunFolder
from orchestrator.runs.doubts import doubts
from orchestrator.runs.experiment import Experiment, open_experiment
from orchestrator.settings import Resources
from tests.launch.kit import make_cell, program
from tests.settings import SPEC

NVIDIA_SMI = """\
import sys
query = sys.argv[1].partition("=")[2].split(",")
chosen = [word[5:].split(",") for word in sys.argv if word.startswith("--id=")]
for place, free in enumerate(FREE):
    known = {"index": place, "memory.free": free, "memory.total": 81559, "name": "NVIDIA A100"}
    if not chosen or str(place) in chosen[0]:
        print(", ".join(str(known.get(name, 0)) for name in query))
"""


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set the free MiB of each of this machine's GPUs."""

    def answer(*free_mib: int) -> None:
        body = f"FREE = {free_mib}\n{NVIDIA_SMI}"
        program(tmp_path / "bin" / "nvidia-smi", body, sys.executable)

    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    return answer


def opened(gpus: int, *overrides: str) -> Experiment:
    base = f"kl.beta: 0.1, resources.gpus_per_node: {gpus}"
    spec = SPEC.replace("site: slurm_a100, ", "").replace("kl.beta: 0.1", base)
    Path("mine.yaml").write_text(spec.replace("m-7b", "m-1b"))
    return open_experiment("mine.yaml", overrides)


def test_auto_is_this_machines_gpus_where_they_are_enough(gpus: Callable[..., None]) -> None:
    assert (opened(2).where, opened(2).scale) == ("local", "micro"), "no nvidia-smi"
    gpus(81000, 81000, 81000, 81000)
    here = opened(2)
    assert (here.where, here.scale, here.folder.path.name) == ("local", "full", "mine")
    asked = {(r.num_nodes, r.gpus_per_node, r.gpu) for r in (c.resources for c in here.cells)}
    assert asked == {(1, 4, "a100-80gb")}, "2 nodes of 2 are one of 4"
    assert opened(4).scale == "micro", "it asks for 8"
    faults = {each.field for each in doubts(opened(4, "site=gpus")) if each.fault}
    assert faults - {"cadence"} == {"resources"}, "cadence: a machine with a small disk"
    assert opened(2, "site=local").scale == "micro"


def test_each_cell_has_gpus_of_its_own(
    fake: Backend, folder: RunFolder, gpus: Callable[..., None]
) -> None:
    """Three cells of one GPU on a machine of three, one of which another process holds."""
    gpus(81000, 900, 81000)
    code = "program:import os, time; print(os.environ['CUDA_VISIBLE_DEVICES']); time.sleep(0.5)"
    one = Resources(num_nodes=1, gpus_per_node=1)
    cells = [make_cell(seed, code, resources=one) for seed in range(3)]
    assert launch(cells, folder, workers=8).count("succeeded") == 3
    ran = [folder.cell(each).attempts()[0] for each in cells]
    ends = [(a.known_exit(), a.stdout.read_text().strip()) for a in ran]
    held = sorted((e.started, e.ended, gpu) for e, gpu in ends if e is not None)
    assert {gpu for _, _, gpu in held} == {"0", "2"}
    for place, (began, _, gpu) in enumerate(held):
        assert all(began >= end for _, end, other in held[:place] if other == gpu), held
    two = make_cell(9, code, resources=Resources(num_nodes=1, gpus_per_node=3))
    with pytest.raises(EnvironmentFault, match=r"asks for 3 GPUs.*, and 2 of the 3 that"):
        launch([two], folder)


def test_plan_and_doctor_say_what_is_here(tmp_path: Path, gpus: Callable[..., None]) -> None:
    """What a cell does here, tests/lab/trl/test_real.py trains."""
    gpus(81000, 81000)
    opened(1, "site=gpus")
    words = ("mine.yaml", "site=gpus", "base.resources.num_nodes=1")
    here = {"PATH": os.environ["PATH"]}
    planned = orch(tmp_path, "plan", *words, **here).stdout
    assert "on this machine with 2 GPUs (a100-80gb), 2 at a time" in planned
    assert "2 (a100-80gb), 2 free" in orch(tmp_path, "doctor", *words, **here).stdout
