"""Cancel, retry and prune, on cells that run and on cells that do not."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.errors import RunFolderError
from orchestrator.launch.local import launch
from orchestrator.records import ExitRecord
from orchestrator.rundir import CellDir, RunFolder
from orchestrator.runs.operations import cancel, prune, retry
from orchestrator.runs.plan import plan
from orchestrator.runs.state import may_retry, read_state
from orchestrator.spec.site_options import ClusterOptions
from tests.cluster.waiting import wait_for
from tests.launch.kit import Orch, ended, leave, make_cell, units

pytestmark = pytest.mark.usefixtures("fake")


def events(folder: RunFolder) -> list[str]:
    return [event["event"] for event in folder.events()]


def test_a_worker_that_does_not_listen_is_killed(
    orch: Orch, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.launch.local.WAIT_SECONDS", 0.5)
    cells = [make_cell(0, "slow", steps=400)]
    process = orch.start(cells, folder)
    wait_for(lambda: units(folder, cells[0]))
    (attempt,) = folder.cell(cells[0]).attempts()
    pid = json.loads(attempt.job.read_text())["pid"]
    os.kill(pid, signal.SIGSTOP)
    kill, written = os.kill, []

    def watched(at: int, number: int) -> None:
        if number == signal.SIGKILL:
            written.append(attempt.exit.exists())
        kill(at, number)

    monkeypatch.setattr("orchestrator.launch.local.os.kill", watched)
    (done,) = cancel(cells, folder)
    monkeypatch.setattr("orchestrator.launch.local.os.kill", kill)
    assert done.done
    assert written == [True], "its last word comes first: nobody starts it again"
    out, _ = process.communicate(timeout=300)
    assert json.loads(out.splitlines()[-1]) == {"interrupted": False, "cancelled": 1}


def test_an_older_pid_is_never_signalled(folder: RunFolder) -> None:
    """The job of a dead attempt names a pid that somebody else has by now."""
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        one = make_cell()
        cell_dir = leave(folder, one, None)
        (attempt,) = cell_dir.attempts()
        job = {"pid": stranger.pid, "host": os.uname().nodename, "birth": "123"}
        attempt.job.write_text(json.dumps(job))
        (done,) = cancel([one], folder)
        assert done.done
        time.sleep(0.1)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_failed_cell_goes_on_after_a_retry_and_a_second_retry_does_nothing(
    folder: RunFolder,
) -> None:
    one = make_cell(instruction="fail")
    launch([one], folder)
    assert [d.done for d in retry([one], folder)] == [True]
    (again,) = retry([one], folder)
    assert (again.done, again.note) == (False, "it is planned")
    launch([one], folder)
    assert units(folder, one) == [1, 2], "it goes on from what it has"
    assert len(folder.cell(one).attempts()) == 2
    assert events(folder).count("retry") == 1


def test_prune_removes_what_left_the_spec_and_nothing_else(folder: RunFolder) -> None:
    kept, gone, running = make_cell(0), make_cell(1), make_cell(2)
    leave(folder, kept, ended())
    orphan = leave(folder, gone, ended())
    (orphan.checkpoints / "12").mkdir(parents=True)
    old, young = (folder.cells_path / f".removed-x-{number}" for number in range(2))
    old.mkdir()
    os.utime(old, (0, 0))
    young.mkdir()
    with leave(folder, running, None).take_claim():
        orphans = [row.directory for row in plan([kept], folder).orphans]
        done = prune(folder, orphans)
    assert {d.directory.id: d.note for d in done} == {
        gone.id: "removed",
        running.id: "it is running; cancel it first",
    }
    assert {d.id for d in folder.cells()} == {kept.id, running.id}
    assert (old.exists(), young.exists()) == (False, True), "young: somebody may be at it"
    assert events(folder) == ["pruned"]
    assert [d.note for d in prune(folder, [orphan])] == ["it is gone already"]
    assert events(folder) == ["pruned"]


def test_prune_stays_within_its_folder(folder: RunFolder, tmp_path: Path) -> None:
    folder.open()
    precious = CellDir(tmp_path / "precious")
    precious.path.mkdir()
    with pytest.raises(RunFolderError, match="nothing was removed"):
        prune(folder, [precious])
    assert precious.path.exists()


@pytest.mark.parametrize(("stops", "again"), [(2, True), (3, False)])
def test_a_cell_that_stops_without_progress_waits_for_a_person(
    folder: RunFolder, stops: int, again: bool
) -> None:
    cell = make_cell(0, "slow")
    cell_dir = folder.cell(cell)
    cell_dir.make(cell)
    for _ in range(stops):
        attempt = cell_dir.new_attempt()
        attempt.job.write_text(json.dumps({"checkpoint_step": 0}))
        attempt.write_exit(ExitRecord(state="preempted", started=0, ended=1))
    assert may_retry(cell_dir, read_state(cell_dir), ClusterOptions(max_requeues=20)) is again
