"""A Ray whose nodes die, or that is full: every test starts heads of its own.

ORCH_RAY_RESTARTS=1 runs them.
"""

import pytest

from orchestrator.launch.ray.server import JobServer
from orchestrator.records import Cell
from tests.launch.kit import HOUSE, make_cell
from tests.launch.ray.conftest import BEFORE_A_RELEASE, Site

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
