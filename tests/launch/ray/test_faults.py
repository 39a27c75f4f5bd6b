"""Faults of nodes, programs and disks on a Ray that lives on: nothing lost, nothing doubled.

ORCH_RAY_RESTARTS=1 runs them.
"""

import os
import signal
import time
from pathlib import Path

import pytest

from orchestrator.files import read_json
from orchestrator.launch.ray import look
from orchestrator.launch.ray.submit import end_frozen
from orchestrator.records import Cell
from orchestrator.rundir import RunFolder
from orchestrator.runs.operations import retry
from tests.launch.kit import make_cell
from tests.launch.ray.cluster import RELEASE, listener
from tests.launch.ray.conftest import BEFORE_A_RELEASE, Site, ray_python
from tests.launch.test_disk import remount

pytestmark = [pytest.mark.real, *BEFORE_A_RELEASE]


def pid_of(site: Site, cell: Cell) -> int:
    return int((read_json(site.attempts(cell)[-1].job) or {})["pid"])


def wait_for_units(site: Site, cell: Cell, beyond: int = 2) -> None:
    site.wait(lambda: site.units(cell) > beyond, lambda: str(site.state(cell)))


def check_no_unit_is_doubled(site: Site, cell: Cell) -> None:
    lines = (site.folder.cell(cell).checkpoints / "units").read_text().splitlines()
    assert [int(line.split()[0]) for line in lines] == list(range(1, len(lines) + 1))


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
