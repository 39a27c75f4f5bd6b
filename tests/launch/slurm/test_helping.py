"""Jobs of embedded cells help each other, on a real cluster; whoever dies, nothing is lost."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.files import read_json
from orchestrator.launch.local import launch
from orchestrator.launch.slurm import lease
from orchestrator.launch.slurm.submit import cancel_submitted
from orchestrator.records import Cell
from orchestrator.rundir import AttemptDir, RunFolder
from orchestrator.runs.collect import collect
from orchestrator.runs.experiment import open_experiment
from tests.launch.slurm.conftest import ROOT, Site
from tests.launch.test_micro import numbers

SMOKE = ROOT / "experiments" / "smoke.yaml"


# ---------------------------------------------------------------- who takes what


def test_an_element_is_taken_once_and_kept(tmp_path: Path) -> None:
    assert lease.take_element(tmp_path, 3, "7_3")
    assert lease.take_element(tmp_path, 3, "7_3"), "a job that SLURM starts again still has it"
    assert not lease.take_element(tmp_path, 3, "7_0")


def test_help_comes_from_the_far_end_and_leaves_what_is_taken(tmp_path: Path) -> None:
    lease.take_element(tmp_path, 4, "7_4")
    found = lease.claim_unstarted(tmp_path, 1, 6, "7_1", lambda: True)
    assert list(found) == [5, 3, 2]
    assert list(lease.claim_unstarted(tmp_path, 0, 6, "7_0", lambda: True)) == [1]


def test_nothing_is_taken_when_the_time_is_over(tmp_path: Path) -> None:
    assert list(lease.claim_unstarted(tmp_path, 0, 6, "7_0", lambda: False)) == []
    assert list(tmp_path.iterdir()) == []


def test_a_helper_begins_cells_and_never_takes_one_over(
    folder: RunFolder, cell: Callable[..., Cell]
) -> None:
    folder.open()
    for began in (None, "job.json", "beat", "exit.json"):
        cell_dir = folder.cell(made := cell(len(str(began))))
        cell_dir.make(made)
        attempt = cell_dir.reserve('{"submission": "one", "index": 0}')
        if began:
            (attempt.path / began).write_text("{}")
        assert lease.begin_unstarted(cell_dir, attempt.number) == (began is None)
        assert not lease.begin_unstarted(cell_dir, attempt.number + 1), "it is another's"
    assert attempt.path.is_dir()


@pytest.mark.parametrize(
    ("own", "more", "code"),
    [
        (0, "pass", 0),
        (3, "raise ValueError", 3),
        (0, "raise ValueError", 0),
        (1, "pass", 1),
        (0, "os.kill(os.getpid(), 9)", 0),
        ("os.kill(os.getpid(), 9)", "pass", -9),
        ("os.kill(os.getpid(), 11)", "pass", -11),
        ("raise ValueError", "pass", 1),
    ],
)
def test_the_code_of_its_own_work_outlives_the_helper(own: int | str, more: str, code: int) -> None:
    program = f"""
import os, sys
from orchestrator.launch.slurm import lease, task
from orchestrator.launch.worker import StopSignals
def own():
    {own if isinstance(own, str) else "pass"}
    return {own if isinstance(own, int) else 0}
def more():
    {more}
signals = task.STOP_SIGNALS
sys.exit(lease.run_in_child(own, more, StopSignals(signals), signals))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    assert ("Traceback" in done.stderr) == ("raise" in f"{own} {more}" and code != 3)


def test_a_silent_helper_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "LEASE_SECONDS", 0.5)
    attempt = AttemptDir(tmp_path / "1", 1)
    attempt.path.mkdir()
    lease.take_element(tmp_path, 0, "7_5")
    began = time.monotonic()
    lease.wait_for_helper(tmp_path, 0, attempt, lambda: False)
    assert time.monotonic() - began > 0.3
    attempt.exit.write_text("{}")
    monkeypatch.setattr(lease, "LEASE_SECONDS", 600.0)  # past the test's own limit
    lease.wait_for_helper(tmp_path, 0, attempt, lambda: False)  # its last word is enough


# ---------------------------------------------------------------- on a cluster


@pytest.fixture
def micro(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """The embedded trainer itself, one job at a time, that helps."""
    monkeypatch.undo()
    monkeypatch.setenv("SLURM_CONF", site.cluster.env["SLURM_CONF"])
    monkeypatch.setenv("PATH", site.cluster.env["PATH"])
    monkeypatch.delenv("PYTHONPATH", raising=False)
    site.set(memory_gib=1.0, max_running=1, help_seconds=600)
    return site


def cells_of(*steps: int) -> list[Cell]:
    """One cell for each number of train steps; the seed is its place."""
    made = []
    for seed, count in enumerate(steps):
        asked = [
            "backend=micro",
            "site.kind=slurm",
            f"+base.num_train_steps={count}",
            f"seeds=[{seed}]",
        ]
        made.append(open_experiment(SMOKE, asked).cells[0])
    return made


def job_of(attempt: AttemptDir) -> dict[str, object]:
    return read_json(attempt.job) or {}


def until(true: Callable[[], bool], words: Callable[[], str], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, words()
        time.sleep(0.05)


@pytest.mark.slow
def test_one_job_trains_the_whole_array_and_every_element_ends_well(
    micro: Site, tmp_path: Path
) -> None:
    cells = cells_of(*[3] * 6)
    alone = RunFolder(tmp_path / "alone")
    assert launch(cells, alone).count("succeeded") == len(cells)
    (job,) = micro.start(*cells).jobs
    seen = micro.wait(*cells)
    assert {s.state for s in seen.values()} == {"succeeded"}, micro.words(cells[0])
    assert [len(micro.attempts(cell)) for cell in cells] == [1] * len(cells)
    assert {job_of(micro.attempts(cell)[0])["job"] for cell in cells} == {f"{job}_0"}
    assert numbers(cells, micro.folder) == numbers(cells, alone)
    for record in collect(cells, micro.folder):  # its own alone, though one process trained all
        assert record.last is not None
        # the process had used seconds before it began the second cell
        assert record.last.cpu_seconds < 1.5 * (record.last.ended - record.last.started) + 0.5

    def ends() -> list[str]:
        told = micro.cluster.run("sacct", "-X", "-n", "-P", "-j", job, "-o", "state,exitcode")
        return told.split()

    until(lambda: ends() == ["COMPLETED|0:0"] * len(cells), lambda: str(ends()))


@pytest.mark.slow
def test_a_helper_that_dies_leaves_the_cell_to_its_own_job(micro: Site, tmp_path: Path) -> None:
    short, long = cells = cells_of(2, 200)
    alone = RunFolder(tmp_path / "alone")
    assert launch(cells, alone).count("succeeded") == len(cells)
    micro.start(*cells)

    def half_way() -> bool:
        metrics = micro.attempts(long)[0].metrics
        return metrics.exists() and len(metrics.read_text().splitlines()) > 25

    until(half_way, lambda: micro.words(long))
    pid = int(str(job_of(micro.attempts(long)[0])["pid"]))
    os.kill(pid, signal.SIGSTOP)  # however slow this machine is, it does not come to its end
    assert not micro.attempts(long)[0].exit.exists(), "it ended before it could be killed"
    micro.attempts(long)[0].heartbeat.touch()
    assert micro.look(short).state == "succeeded"
    assert micro.look(long).state == "running", "though its own job waits in the queue"
    os.kill(pid, signal.SIGKILL)
    seen = micro.wait(*cells)
    assert {s.state for s in seen.values()} == {"succeeded"}, micro.words(long)
    job = str(job_of(micro.attempts(short)[0])["job"])
    told = micro.cluster.run("sacct", "-X", "-n", "-P", "-j", job, "-o", "state,exitcode")
    assert told.split() == ["COMPLETED|0:0"], "its own cell is good, and what follows it may start"
    first, second = (job_of(attempt)["job"] for attempt in micro.attempts(long))
    assert str(first).endswith("_0")
    assert str(second).endswith("_1")
    assert len(micro.attempts(short)) == 1
    assert numbers(cells, micro.folder) == numbers(cells, alone)


@pytest.mark.slow
def test_a_cell_is_cancelled_while_another_job_trains_it(micro: Site) -> None:
    short, long = cells_of(2, 2000)
    micro.start(short, long)
    until(lambda: micro.attempts(long)[0].metrics.exists(), lambda: micro.words(long))
    pid = int(str(job_of(micro.attempts(long)[0])["pid"]))
    cancel_submitted([long], micro.folder, "by a test")
    assert micro.look(long).state == "cancelled"

    def gone() -> bool:
        return not Path(f"/proc/{pid}").exists()

    until(gone, lambda: micro.words(long))
    assert micro.look(long).state == "cancelled"
    assert micro.look(short).state == "succeeded"
    until(lambda: not micro.cluster.run("squeue", "-h").strip(), lambda: micro.words(long))
