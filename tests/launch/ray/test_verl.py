"""Cells of verl on a Ray: the library's own Ray program, joined to the Ray of its job.

ORCH_RAY_RESTARTS=1 runs it: two cells are two dozen processes, each of which imports torch.
"""

import shlex
import sys
from pathlib import Path

import pytest

from orchestrator import plugins
from orchestrator.data import prepared
from orchestrator.rundir import RunFolder
from orchestrator.spec.site_options import RayOptions
from tests.backends import proven
from tests.backends.environments import cpu_python
from tests.launch.ray import on_cpu
from tests.launch.ray.conftest import BEFORE_A_RELEASE, Site

pytestmark = BEFORE_A_RELEASE
VERL = "0.9.1"


@pytest.fixture
def verl(own: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A folder for cells of verl, and a Ray whose second node declares what two of them claim."""
    environment = cpu_python("verl", VERL).parents[1]
    own.cluster.start(cpus=3)
    own.cluster.add("trainers", cpus=26, gpus=2)
    python = tmp_path / "python"
    here = shlex.quote(str(Path(__file__).with_name("on_cpu.py")))
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {here} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(plugins, "load", on_cpu.as_it_is)
    own.folder = RunFolder(tmp_path / "it's ü" / "runs" / "test")
    own.options = RayOptions.model_validate(
        {
            "address": own.cluster.address,
            "python": str(python),
            "environments": {"verl": {"venv": str(environment)}},
        }
    )
    return own


def test_two_cells_of_verl_train_on_the_one_ray(
    verl: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """verl's whole main_ppo, its actors placed by the Ray of its job, one cell after the other:
    at once the second waited for ever in the first one's TransferQueue. No second Ray starts.

    Only the GPU and vLLM have stand-ins, as where verl's proof is trained.
    """
    cells = []
    for seed in range(2):
        settings = {"kl": {"estimator": "k3", "placement": "loss", "beta": 0.05}, "seed": seed}
        made = proven.other_cell("verl", VERL, settings, verl.folder.path.parents[1], batches=2)
        cells.append(made.cell.model_copy(update={"slug": f"k3.loss-s{seed}"}))
    prepared.prepare(cells[0].settings.data, [on_cpu.BACKEND.prompts_format], tmp_path / "data")
    monkeypatch.setenv("ORCH_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr(plugins, "load", on_cpu.load)
    nodes = verl.cluster.alive()
    for number, cell in enumerate(cells):
        assert list(verl.launcher.submit(cells)) == [cell]
        assert not verl.launcher.submit(cells), "the next one waits"
        state = verl.until(cell, "succeeded", "failed", seconds=400)
        (attempt,) = verl.attempts(cell)
        assert state.state == "succeeded", f"{state}\n{attempt.stderr.read_text()[-3000:]}"
        points = list(on_cpu.BACKEND.read_metrics(attempt.path))
        assert max(point.step for point in points) == cell.settings.num_train_steps
        saved = on_cpu.BACKEND.find_checkpoints(verl.folder.cell(cell).checkpoints)
        assert saved[-1].step == cell.settings.num_train_steps
        (job,) = (j for j in verl.cluster.jobs() if j["submission_id"] == verl.submission(cell))
        assert job["job_id"], "its driver joined this Ray"
        assert len(verl.cluster.jobs()) == number + 1
    assert verl.cluster.alive() == nodes
