"""A Ray whose nodes die, or that is full: every test starts heads of its own.

ORCH_RAY_RESTARTS=1 runs them.
"""

import os
import signal
from pathlib import Path

import pytest

from orchestrator.errors import EnvironmentFault
from orchestrator.launch.ray.server import JobServer
from orchestrator.records import Cell
from orchestrator.spec.site_options import RayOptions
from tests.launch.kit import HOUSE, make_cell
from tests.launch.ray.cluster import listener
from tests.launch.ray.conftest import BEFORE_A_RELEASE, Site, ray_python

pytestmark = [pytest.mark.real, *BEFORE_A_RELEASE]


def steps(site: Site, cell: Cell) -> list[int]:
    units = site.folder.cell(cell).checkpoints / "units"
    return [int(line.split()[0]) for line in units.read_text().splitlines()]


def go_on(site: Site, cell: Cell) -> None:
    """Submit again what the fault ended, until the cell makes progress; no unit is done twice."""
    before = site.units(cell)
    ended = site.until(cell, "failed", seconds=150).exit
    assert ended is not None
    assert ended.failure in ("lost", "node"), ended
    assert "\n" not in ended.message
    attempt = site.attempts(cell)[-1]
    attempt.write_exit(ended)  # as runs.wait does for a class that may be retried
    site.folder.cell(cell).new_attempt()
    assert list(site.launcher.submit([cell])) == [cell]
    site.wait(lambda: site.units(cell) > before, lambda: str(site.state(cell)), seconds=300)
    done = steps(site, cell)
    assert done == list(range(1, len(done) + 1))
    assert len(site.attempts(cell)) == 2


def test_a_head_killed_and_restarted_without_its_state(own: Site) -> None:
    """The state is lost: the same id would be accepted. The cell goes on, and an old request that
    is sent again starts nothing."""
    own.cluster.start(cpus=3)
    cell = make_cell(0, "slow", 20000)
    assert list(own.launcher.submit([cell])) == [cell]
    own.wait(lambda: own.units(cell) > 2, lambda: str(own.state(cell)), seconds=300)
    (job,) = own.cluster.jobs()
    own.cluster.kill_head()
    assert own.state(cell).state in ("running", "unknown")
    own.cluster.start(cpus=3)
    assert own.cluster.jobs() == [], "it forgot the job"
    body = {
        "submission_id": job["submission_id"],
        "entrypoint": job["entrypoint"],
        "runtime_env": {"env_vars": {"PYTHONPATH": str(HOUSE)}},
    }
    own.cluster.ask("POST", "/api/jobs/", body)
    server = JobServer(own.cluster.address)
    own.wait(
        lambda: server.jobs()[job["submission_id"]].is_over, lambda: str(server.jobs()), seconds=300
    )
    assert "this job starts nothing" in server.jobs()[job["submission_id"]].message
    go_on(own, cell)
    own.launcher.cancel([cell], "the test is over")


def test_a_head_killed_and_restarted_with_its_state(own: Site) -> None:
    storage = {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(own.cluster.base / "gcs")}
    own.cluster.start(cpus=3, **storage)
    cell = make_cell(0, "slow", 20000)
    own.launcher.submit([cell])
    own.wait(lambda: own.units(cell) > 2, lambda: str(own.state(cell)), seconds=300)
    (job,) = own.cluster.jobs()
    own.cluster.kill_head()
    own.cluster.start(cpus=3, **storage)
    listed = [each["submission_id"] for each in own.cluster.jobs()]
    if listed != [job["submission_id"]]:
        pytest.skip("this Ray kept no state: how it is asked to has changed")
    go_on(own, cell)
    own.launcher.cancel([cell], "the test is over")


def test_a_worker_node_that_is_lost(own: Site) -> None:
    own.cluster.start(cpus=2)
    other = own.cluster.add("other", cpus=2, resources={"other": 1})
    own.options = own.options.model_copy(update={"resources": {"other": 0.5}})
    cell = make_cell(0, "slow", 20000)
    own.launcher.submit([cell])
    own.wait(lambda: own.units(cell) > 2, lambda: str(own.state(cell)), seconds=300)
    other.kill()
    own.cluster.nodes.remove(other)
    own.options = own.options.model_copy(update={"resources": {}})
    go_on(own, cell)
    own.launcher.cancel([cell], "the test is over")


def with_trainer(site: Site, python: Path) -> None:
    """Let the cells' library have the environment of this Python."""
    site.options = RayOptions.model_validate(
        {
            **site.options.model_dump(mode="json"),
            "environments": {"fake": {"venv": str(python.parents[1])}},
        }
    )


FILLS = """
import ray
ray.init()
kept = [ray.put(bytes(32 << 20)) for _ in range(32)]  # 1 GiB; a node has 80 MB
print(len(kept))
"""


def test_an_object_store_that_is_full(own: Site) -> None:
    """Ray puts on disk what its store has no room for, until the disk is as full as it allows.
    The cell that fills it fails in one sentence; another goes on."""
    own.cluster.start(cpus=3, RAY_local_fs_capacity_threshold="0.01")
    with_trainer(own, ray_python())
    fills, other = make_cell(0, f"ray:{FILLS}"), make_cell(1, "slow", 20000)
    assert len(own.launcher.submit([fills, other])) == 2
    own.wait(lambda: own.units(other) > 2, lambda: str(own.state(other)))
    full = own.until(fills, "failed", "succeeded").exit
    assert full is not None
    assert full.failure == "disk", full
    before = own.units(other)
    own.wait(lambda: own.units(other) > before, lambda: str(own.state(other)))
    assert len(own.attempts(fills)) == len(own.attempts(other)) == 1
    own.launcher.cancel([other], "the test is over")


def test_a_job_server_that_is_killed(own: Site) -> None:
    """Its process is killed -9 while a cell trains: the cell trains on or is lost with its head,
    nothing new is sent, and on the next head the cell goes on."""
    own.cluster.start(cpus=3)
    cell, later = make_cell(0, "slow", 20000), make_cell(1)
    own.launcher.submit([cell])
    own.wait(lambda: own.units(cell) > 2, lambda: str(own.state(cell)))
    os.kill(listener(own.cluster.dashboard), signal.SIGKILL)
    own.wait(lambda: not listener(own.cluster.dashboard), lambda: "it listens still", 60)
    with pytest.raises(EnvironmentFault, match=r"does not answer .*nothing is lost"):
        own.launcher.submit([later])
    assert not own.attempts(later)
    assert own.state(cell).state in ("running", "unknown")
    own.cluster.kill_head()
    own.cluster.start(cpus=3)
    go_on(own, cell)
    assert list(own.launcher.submit([later])) == [later]
    own.until(later, "succeeded")
    own.launcher.cancel([cell], "the test is over")
