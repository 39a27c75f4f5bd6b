"""verl 0.9.1 trains on this machine with the launch that orch emits: its whole main_ppo, in one
process. Only vLLM, the GPU, Ray's processes and TransferQueue's stand in."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from backends.verl import BACKEND
from orchestrator.environments.lock import Environment
from orchestrator.prove.cells import cells_of
from orchestrator.prove.checks import checks
from orchestrator.prove.run import Run, read_run
from orchestrator.prove.small import small, train
from orchestrator.records import Cell
from orchestrator.rundir import CellDir
from orchestrator.spec.site_options import EnvironmentEntry, NodeOptions
from tests.backends.environments import cpu_python

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.real]

BATCHES = 4


@pytest.fixture(scope="module")
def environment() -> Environment:
    python = cpu_python("verl", "0.9.1")
    return Environment("verl", "0.9.1", "cpu", python.parents[1], "")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("it's a folder")


def cell(name: str, folder: Path) -> tuple[Cell, CellDir]:
    declared = dict(cells_of("verl", "0.9.1"))[name]
    chosen = small(declared, folder, batches=BATCHES).cell
    return chosen, CellDir(folder / "cells" / f"{name}-{chosen.id}")


def trained(name: str, folder: Path, environment: Environment) -> Run:
    chosen, cell_dir = cell(name, folder)
    _, ending = train(chosen, cell_dir, environment)
    log = cell_dir.attempts()[-1]
    assert ending.state == "succeeded", f"{ending.message}\n{log.stderr.read_text()[-4000:]}"
    return read_run(cell_dir)


@pytest.mark.parametrize("name", ["k1.reward", "k3.loss.x4"])
def test_verl_does_what_its_dialect_predicts(
    name: str, folder: Path, environment: Environment
) -> None:
    run = trained(name, folder, environment)
    proof = run.proof()
    assert proof.holds, proof
    updates = run.cell.settings.batch.num_minibatches
    assert proof.num_steps == BATCHES * updates
    worst = {each.name: each.worst for each in proof.quantities}
    assert worst["grad_norm"] < (1e-5 if updates == 1 else 1e-3), worst
    assert "weights" in worst


def test_a_killed_run_goes_on_and_is_exported(folder: Path, environment: Environment) -> None:
    """Killed after its first checkpoint, it repeats what came after: the proof spans both."""
    chosen, cell_dir = cell("k3.loss", folder)
    first = threading.Thread(target=train, args=(chosen, cell_dir, environment))
    first.start()
    deadline = time.monotonic() + 300
    while not BACKEND.find_checkpoints(cell_dir.checkpoints):
        assert time.monotonic() < deadline
        assert first.is_alive()
        time.sleep(0.2)
    for process in processes(cell_dir.path):
        os.kill(process, signal.SIGKILL)
    first.join()
    saved = BACKEND.find_checkpoints(cell_dir.checkpoints)[-1].step
    assert saved < BATCHES
    _, ending = train(chosen, cell_dir, environment)
    assert ending.state == "succeeded", ending.message
    assert len(cell_dir.attempts()) == 2
    again = sorted((cell_dir.attempts()[1].path / "rollouts").glob("[0-9]*.json"))
    assert int(again[0].stem) == saved + 1
    run = read_run(cell_dir)
    assert run.proof().holds, run.proof()
    options = NodeOptions(environments={"verl@0.9.1": EnvironmentEntry(venv=str(environment.path))})
    failed = [each for each in checks(run, cell_dir, options) if each.holds is not True]
    assert not failed, failed


def processes(folder: Path) -> Iterator[int]:
    """The processes of a cell's launch, by the variable that names its folder."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            held = path.read_bytes()
        except OSError:
            continue
        if f"ORCH_ROLLOUT_DUMP={folder}".encode() in held:
            yield int(path.parent.name)
