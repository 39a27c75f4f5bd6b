"""Faults of nodes, programs and disks on a Ray that lives on: nothing lost, nothing doubled.

ORCH_RAY_RESTARTS=1 runs them.
"""

import os
import signal
import time
from pathlib import Path

import pytest

from orchestrator.errors import EnvironmentFault
from orchestrator.files import read_json
from orchestrator.launch.ray import look
from orchestrator.launch.ray.submit import end_frozen
from orchestrator.records import Cell
from orchestrator.rundir import RunFolder
from orchestrator.runs.operations import retry
from tests.launch.kit import make_cell
from tests.launch.ray.cluster import RELEASE, listener
from tests.launch.ray.conftest import BEFORE_A_RELEASE, Site, ray_python
from tests.launch.test_disk import remount, small

pytestmark = [pytest.mark.real, *BEFORE_A_RELEASE]
__all__ = ["small"]


def pid_of(site: Site, cell: Cell) -> int:
    return int((read_json(site.attempts(cell)[-1].job) or {})["pid"])


def wait_for_units(site: Site, cell: Cell, beyond: int = 2) -> None:
    site.wait(lambda: site.units(cell) > beyond, lambda: str(site.state(cell)))


def check_no_unit_is_doubled(site: Site, cell: Cell) -> None:
    lines = (site.folder.cell(cell).checkpoints / "units").read_text().splitlines()
    assert [int(line.split()[0]) for line in lines] == list(range(1, len(lines) + 1))


def test_an_agent_that_answers_late(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head's agent, which starts jobs, stands still: the request ends without an answer and
    may be served later. The cell is sent again, and begun once."""
    monkeypatch.setattr("orchestrator.launch.ray.server.DEADLINE_SECONDS", 4.0)
    first, cell = make_cell(0), make_cell(1)
    site.launcher.submit([first])
    site.until(first, "succeeded")
    (job,) = (j for j in site.cluster.jobs() if j["submission_id"] == site.submission(first))
    agent = listener(int(str(job["driver_agent_http_address"]).rpartition(":")[2]))
    assert agent
    os.kill(agent, signal.SIGSTOP)
    try:
        with pytest.raises(EnvironmentFault, match="nothing is lost: run again"):
            site.launcher.submit([cell])
    finally:
        os.kill(agent, signal.SIGCONT)
    time.sleep(3)
    monkeypatch.undo()
    monkeypatch.setenv("RAY_AUTH_TOKEN", site.cluster.token)
    site.launcher.submit([cell])
    site.until(cell, "succeeded")
    assert len(site.attempts(cell)) == 1
    assert site.units(cell) == 3


def test_a_worker_that_is_frozen(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job's process stands still while Ray says RUNNING: it is ended, and another goes on."""
    monkeypatch.setattr(look, "LEASE_SECONDS", 6.0)
    monkeypatch.setattr(look, "FROZEN_SECONDS", 8.0)
    cell = make_cell(0, "slow", 20000)
    site.launcher.submit([cell])
    wait_for_units(site, cell)
    os.kill(pid_of(site, cell), signal.SIGSTOP)
    site.wait(lambda: bool(site.state(cell).fault), lambda: str(site.state(cell)), 60)
    state = site.state(cell)
    assert state.state == "running"
    assert state.fault.startswith("frozen: no heartbeat from ")
    (sentence,) = end_frozen([(cell, state)], site.folder)
    assert sentence.endswith("its job is ended")
    ended = site.state(cell).exit
    assert ended is not None
    assert (ended.state, ended.failure) == ("failed", "hung")
    count = site.units(cell)
    site.folder.cell(cell).new_attempt()
    assert list(site.launcher.submit([cell])) == [cell]
    wait_for_units(site, cell, count)
    check_no_unit_is_doubled(site, cell)
    site.launcher.cancel([cell], "the test is over")


def test_cancelled_while_the_server_does_not_answer(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running job ends by itself; one that was not begun begins nothing."""
    monkeypatch.setattr("orchestrator.launch.ray.server.DEADLINE_SECONDS", 3.0)
    cell = make_cell(0, "slow", 20000)
    site.launcher.submit([cell])
    wait_for_units(site, cell)
    pid, server = pid_of(site, cell), listener(site.cluster.dashboard)
    os.kill(server, signal.SIGSTOP)
    try:
        (result,) = site.launcher.cancel([cell], "by the test")
        assert result.done
        assert "jobs that run end by themselves within seconds" in result.note
        site.wait(lambda: not Path(f"/proc/{pid}").exists(), lambda: "it runs on", 60)
    finally:
        os.kill(server, signal.SIGCONT)
    count = site.units(cell)
    assert site.until(cell, "cancelled").exit is not None
    time.sleep(1)
    assert site.units(cell) == count


def test_a_disk_that_is_full(site: Site, small: Path) -> None:
    """The runs folder's disk fills up: one sentence, and the cell goes on once there is room."""
    remount(small, "size=8m")
    site.folder = RunFolder(small / "runs" / "test")
    cell = make_cell(0, "slow fill", 20)
    site.launcher.submit([cell])
    ended = site.until(cell, "failed", "preempted", "succeeded").exit
    assert ended is not None
    assert ended.failure == "disk", ended
    assert "no room left to write to" in ended.message
    assert "orch retry" in ended.message
    assert "\n" not in ended.message
    remount(small, "size=60m")
    assert all(done.done for done in retry([cell], site.folder))
    assert list(site.launcher.submit([cell])) == [cell]
    site.until(cell, "succeeded")
    check_no_unit_is_doubled(site, cell)
    assert site.units(cell) == 20
    assert len(site.attempts(cell)) == 2


ACTORS = """
import os, pathlib, ray, time
ray.init()

@ray.remote(num_cpus=0.5, max_restarts=0)
class Trainer:
    def pid(self):
        return os.getpid()
    def train(self):
        time.sleep(600)

trainer = Trainer.remote()
pathlib.Path(os.environ["FAKE_ATTEMPT"], "pid").write_text(str(ray.get(trainer.pid.remote())))
ray.get(trainer.train.remote())
"""


def test_a_librarys_actor_that_is_killed(site: Site) -> None:
    """The library's driver ends with Ray's error: the attempt failed, its message says why."""
    venv = str(ray_python().parents[1])
    site.options = type(site.options).model_validate(
        {**site.options.model_dump(mode="json"), "environments": {"fake": {"venv": venv}}}
    )
    cell = make_cell(0, f"ray:{ACTORS}")
    site.launcher.submit([cell])
    site.wait(lambda: bool(site.attempts(cell)), lambda: str(site.state(cell)))
    told = site.attempts(cell)[-1].path / "pid"
    site.wait(lambda: told.exists() and told.read_text() != "", lambda: str(site.state(cell)))
    os.kill(int(told.read_text()), signal.SIGKILL)
    ended = site.until(cell, "failed").exit
    assert ended is not None
    assert "ActorDiedError" in ended.message or "actor" in ended.message
    assert len(site.attempts(cell)) == 1


def test_a_trainer_of_another_release_of_ray(site: Site) -> None:
    """Ray refuses it, which is a mistake of the site and not tried again."""
    other = "2.55.0" if RELEASE != "2.55.0" else "2.60.0"
    venv = str(ray_python(other).parents[1])
    site.options = type(site.options).model_validate(
        {**site.options.model_dump(mode="json"), "environments": {"fake": {"venv": venv}}}
    )
    cell = make_cell(0, "ray:import ray; ray.init()")
    site.launcher.submit([cell])
    ended = site.until(cell, "failed", "succeeded").exit
    assert ended is not None
    assert ended.failure == "config", ended
    assert other in ended.message
    assert RELEASE in ended.message
    assert len(site.attempts(cell)) == 1
