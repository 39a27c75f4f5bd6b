"""What SLURM says, or does not say, is checked before it is believed."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from orchestrator.launch.slurm import scheduler, submissions
from orchestrator.runs.state import one_look, read_state
from tests.launch.kit import ended, many
from tests.launch.slurm.conftest import Site


def test_a_controller_that_stalls_gets_each_array_once(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request that timed out is in its socket still, and is worked off after it answers."""
    conf = site.cluster.conf.read_text().replace("MessageTimeout=10", "MessageTimeout=2")
    (tmp_path / "slurm.conf").write_text(conf)  # of the client alone: it gives up after 2 s
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    site.set(extra=["--hold"], max_array_size=2)
    controller = int((site.cluster.base / "run" / "slurmctld").read_text())
    real = scheduler.sbatch
    stalls = iter((False, True, False, False))

    def stalling(*arguments: Any, **more: Any) -> str:
        if next(stalls, False):
            os.kill(controller, signal.SIGSTOP)
            threading.Timer(5, os.kill, (controller, signal.SIGCONT)).start()
        return real(*arguments, **more)

    monkeypatch.setattr(scheduler, "sbatch", stalling)
    sent = site.submit(*many(4))
    assert len(sent.jobs) == 2
    assert any("asking again" in sentence for sentence in site.told)
    names = [s.name for s in submissions.read(site.folder).values()]
    assert set(site.cluster.run("squeue", "-h", "-o", "%j").split()) == set(names)
    first, *others = site.folder.cells()
    with one_look(site.folder):
        assert [read_state(each).state for each in site.folder.cells()] == ["pending"] * 4
    first.open_attempt().write_exit(ended("cancelled"))
    with one_look(site.folder):
        assert read_state(first).state == "cancelled"
        assert {read_state(each).state for each in others} == {"pending"}


def test_a_second_copy_of_a_job_starts_nothing(site: Site) -> None:
    """A script that somebody sends again: it would end the training at work."""
    cells = many(2, "slow", 60)
    site.start(*cells)
    site.until_units(cells[0], 3)
    (sent,) = submissions.read(site.folder).values()
    place = site.folder.submission(sent.id)
    twin = site.cluster.run("sbatch", "--parsable", f"--chdir={place}", place / "job.sh").strip()
    log = place / f"{twin}_0.log"
    site.wait_for(lambda: log.exists() and "starts nothing" in log.read_text(), cells[0], 30)
    seen = site.wait(*cells)
    assert {s.state for s in seen.values()} == {"succeeded"}
    assert [len(site.attempts(cell)) for cell in cells] == [1, 1], "nothing was begun twice"
    assert [site.units(cell) for cell in cells] == [60, 60]
