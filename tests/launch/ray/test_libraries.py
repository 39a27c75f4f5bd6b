"""Cells of verl and SkyRL on a Ray: a library's own Ray program, joined to the Ray of its job.

Only the GPU and vLLM have stand-ins, as where a library's proof is trained. ORCH_RAY_RESTARTS=1
runs it: a cell is a dozen processes, each of which imports torch.
"""

import shlex
import sys
from pathlib import Path

import pytest

from orchestrator import plugins
from orchestrator.data import prepared
from orchestrator.records import Cell
from orchestrator.rundir import RunFolder
from orchestrator.spec.site_options import RayOptions
from tests.backends.environments import cpu_python
from tests.lab import proven
from tests.launch.ray import on_cpu
from tests.launch.ray.conftest import BEFORE_A_RELEASE, Site

pytestmark = [pytest.mark.real, *BEFORE_A_RELEASE]
patient = pytest.mark.timeout(3600)
"""Beside a load of 20 to 30 on two cores, verl's workers had not all started after 700 s."""
KL = {"estimator": "k3", "placement": "loss", "beta": 0.05}


def two_cells(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, version: str
) -> list[Cell]:
    """Two cells that differ in their seed, and what their jobs need to train without a GPU."""
    environment = cpu_python(library, version).parents[1]
    python = tmp_path / "python"
    here = shlex.quote(str(Path(__file__).with_name("on_cpu.py")))
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {here} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(plugins, "load", on_cpu.as_it_is)
    site.folder = RunFolder(tmp_path / "it's ü" / "runs" / "test")
    site.options = RayOptions.model_validate(
        {
            "address": site.cluster.address,
            "python": str(python),
            "environments": {library: {"venv": str(environment)}},
        }
    )
    cells = []
    for seed in range(2):
        settings = {"kl": KL, "seed": seed}
        made = proven.other_cell(library, version, settings, tmp_path / "it's ü", batches=2)
        cells.append(made.cell.model_copy(update={"slug": f"k3.loss-s{seed}"}))
    wanted = on_cpu.as_it_is(library).prompts_format
    assert wanted
    prepared.prepare(cells[0].settings.data, [wanted], tmp_path / "data")
    monkeypatch.setenv("ORCH_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr(plugins, "load", on_cpu.load)
    return cells


def check_trained(site: Site, cell: Cell) -> None:
    """Wait for a cell: trained to its end, once, by a driver that joined this Ray."""
    state = site.until(cell, "succeeded", "failed", seconds=1500)
    (attempt,) = site.attempts(cell)
    assert state.state == "succeeded", f"{state}\n{attempt.stderr.read_text()[-3000:]}"
    backend, steps = plugins.load(cell.settings.backend.name), cell.settings.num_train_steps
    assert max(point.step for point in backend.read_metrics(attempt.path)) == steps
    saved = backend.find_checkpoints(site.folder.cell(cell).checkpoints)
    assert saved[-1].step == steps
    (job,) = (j for j in site.cluster.jobs() if j["submission_id"] == site.submission(cell))
    assert job["job_id"], "its driver joined this Ray"
    assert site.cluster.alive() == 2


def holders_of_groups(site: Site) -> set[str]:
    """The programs of Ray that hold a placement group now."""
    answer = site.cluster.ask("GET", "/api/v0/placement_groups")
    groups = answer["data"]["result"]["result"]
    return {group["creator_job_id"] for group in groups if group["state"] == "CREATED"}


@patient
def test_two_cells_of_verl_train_on_the_one_ray(
    own: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other: at once the second waited for ever in the first one's TransferQueue."""
    cells = two_cells(own, tmp_path, monkeypatch, "verl", "0.9.1")
    own.cluster.start(cpus=3)
    own.cluster.add("trainers", cpus=26, gpus=2)
    for number, cell in enumerate(cells):
        assert list(own.launcher.submit(cells)) == [cell]
        assert not own.launcher.submit(cells), "the next one waits"
        check_trained(own, cell)
        assert len(own.cluster.jobs()) == number + 1


@patient
def test_two_cells_of_skyrl_train_at_once_on_the_one_ray(
    own: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Ray is of the release that SkyRL's environment has, because Ray refuses another. It has
    the CPUs that the two cells claim, and no more."""
    cells = two_cells(own, tmp_path, monkeypatch, "skyrl", "0.4.0")
    own.cluster.python = cpu_python("skyrl", "0.4.0")
    own.cluster.start(cpus=1)
    own.cluster.add("trainers", cpus=5, gpus=2)
    assert list(own.launcher.submit(cells)) == cells
    own.wait(
        lambda: len(holders_of_groups(own)) == 2,
        lambda: str([own.state(cell) for cell in cells]),
        seconds=600,
    )
    for cell in cells:
        check_trained(own, cell)
    assert len(own.cluster.jobs()) == 2
