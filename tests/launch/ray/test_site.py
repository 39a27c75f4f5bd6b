"""A site file for a Ray: options, `orch doctor`, `plan`, `run --dry-run`, `status`, `cancel`."""

from pathlib import Path

import pytest
from command_line import orch

from orchestrator.errors import EnvironmentFault, SpecError
from orchestrator.runs.experiment import open_experiment
from orchestrator.spec.site_options import ray_options
from tests.launch.ray.model_server import model_server

SMOKE = str(Path(__file__).parents[3] / "experiments" / "smoke.yaml")


def test_options_of_a_ray_are_not_those_of_slurm() -> None:
    with pytest.raises(EnvironmentFault, match="unknown field 'partition'"):
        ray_options({"partition": "gpu"})
    with pytest.raises(EnvironmentFault, match="without a user or a password"):
        ray_options({"address": "http://me:secret@10.0.0.1"})
    with pytest.raises(SpecError, match="unknown field 'address'"):
        open_experiment(SMOKE, ["site.kind=slurm", "+site.options.address=http://127.0.0.1:1"])


def test_doctor_plan_and_dry_run_on_a_ray(tmp_path: Path) -> None:
    with model_server() as server:
        server.totals = {"CPU": 8.0, "GPU": 4.0}
        site = ["site.kind=ray", f"+site.options.address={server.address}"]
        checked = orch(tmp_path, "doctor", SMOKE, "backend=micro", *site).stdout
        assert f"2.60.0 at {server.address}, 0 jobs" in " ".join(checked.split())
        done = orch(tmp_path, "run", SMOKE, "backend=micro", *site, "--dry-run")
        assert done.returncode == 0
        assert "jobs of 4 cells: 1 node with 1 CPU, no claim on memory" in done.stdout
        assert not server.jobs
        sent = orch(tmp_path, "run", SMOKE, "backend=micro", *site, "+site.options.max_running=3")
        assert "submitted 3 cells as Ray jobs" in sent.stderr
        assert "1 cell not sent yet" in sent.stderr
        listed = orch(tmp_path, "status", SMOKE, "backend=micro", *site).stdout
        assert "3 pending, 1 planned" in listed
        stopped = orch(tmp_path, "cancel", SMOKE, "backend=micro", *site)
        assert stopped.returncode == 0
        assert [job["status"] for job in server.jobs.values()] == ["STOPPED"] * 3
    listed = orch(tmp_path, "status", SMOKE, "backend=micro", *site).stdout
    assert "4 cancelled" in listed
