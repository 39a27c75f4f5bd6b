"""Jobs are watched from outside: a worker that is frozen, and one that never gets anywhere."""

import os
import signal
import time
from typing import Any

import pytest

from orchestrator.files import read_json
from orchestrator.launch.slurm import lease
from orchestrator.launch.slurm.submit import SlurmLauncher
from orchestrator.runs.plan import plan
from tests.launch.kit import many
from tests.launch.slurm.conftest import Site


def test_a_frozen_worker_is_told_and_its_cell_goes_on_elsewhere(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file server that does not answer freezes the worker's own watch with it."""
    (cell,) = many(1, "slow", 100)
    site.start(cell)
    site.until_units(cell, 3)
    job = read_json(site.attempts(cell)[0].job)
    os.kill(int(job["pid"]), signal.SIGSTOP)
    monkeypatch.setattr(lease, "FROZEN_SECONDS", 15.0)
    site.wait_for(lambda: site.look(cell).fault, cell)
    (row,) = plan([cell], site.folder).rows
    assert row.state == "running", "by SLURM it is"
    assert row.detail.startswith(f"frozen: no heartbeat from {job['host']} for 0 min, while SLURM")

    end_frozen = SlurmLauncher.end_frozen

    def end_and_let_it_wake(launcher: SlurmLauncher, cells: Any) -> list[str]:
        """scancel wakes the worker and asks it to stop; it must not write over the record."""
        sentences = end_frozen(launcher, cells)
        site.wait_for(lambda: not site.cluster.run("squeue", "-h"), cell)
        return sentences

    monkeypatch.setattr(SlurmLauncher, "end_frozen", end_and_let_it_wake)
    assert site.wait(cell)[cell.id].state == "succeeded", site.words(cell)
    first, second = (attempt.read_exit() for attempt in site.attempts(cell))
    assert (first.state, first.failure, first.host) == ("failed", "hung", job["host"])
    assert second.host != first.host, "the node is avoided"
    assert any("its job is ended" in sentence for sentence in site.told)
    assert site.units(cell) == 100, "no unit of work was done twice or left out"


def test_a_clock_that_is_two_hours_ahead_ends_no_job(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The age of a heartbeat is counted by the clock of its file system."""
    (cell,) = many(1, "slow", 20)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 7200)
    monkeypatch.setattr(lease, "FROZEN_SECONDS", 60.0)
    assert site.wait(cell)[cell.id].state == "succeeded", site.words(cell)
    assert len(site.attempts(cell)) == 1
    assert any("min ahead of that of the file system" in sentence for sentence in site.told)


def test_a_cell_that_never_reaches_a_checkpoint_stops(site: Site) -> None:
    """SLURM tells it to stop, as before a time limit, and it is put back into the queue: twice."""
    (cell,) = many(1, "idle")
    site.set(time_limit_hours=0.2, signal_seconds=30, max_requeues=20)
    site.start(cell)
    for number in (1, 2, 3):
        site.wait_for(lambda wanted=number: site.begun(cell) == wanted, cell)
        time.sleep(0.5)
        site.cluster.run("scancel", "--batch", "--signal=USR1", site.job(cell))
    seen = site.until(cell, "failed", 30)
    assert seen.exit.failure == "no_progress", seen
    assert "stopped 3 times (preempted) without a checkpoint newer than step 0" in seen.exit.message
    assert "cadence.checkpoint_every_steps" in seen.exit.message
    assert len(site.attempts(cell)) == 3
    assert site.start(cell).cells == (), "it would happen again"
