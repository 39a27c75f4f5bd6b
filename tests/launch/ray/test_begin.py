"""A job begins an attempt once, whatever the server does with its submission id."""

import os
import subprocess
import sys
import threading
import time

import pytest

from orchestrator.launch.ray import look
from orchestrator.launch.ray.server import RayJob
from orchestrator.launch.ray.task import begin
from orchestrator.records import Cell
from orchestrator.rundir import AttemptDir, CellDir, RunFolder
from orchestrator.spec.site_options import RayOptions
from tests.launch.kit import ended, make_cell

ADDRESS = "http://127.0.0.1:1"


@pytest.fixture
def reserved(folder: RunFolder) -> tuple[CellDir, AttemptDir]:
    return reserve(folder, make_cell(), "one")


def reserve(folder: RunFolder, cell: Cell, submission: str) -> tuple[CellDir, AttemptDir]:
    folder.open()
    cell_dir = folder.cell(cell)
    cell_dir.make(cell)
    order = {
        "submission": submission,
        "address": ADDRESS,
        "time": time.time(),
        "data_dir": "",
        "options": RayOptions().model_dump(mode="json"),
    }
    return cell_dir, cell_dir.reserve(look.order_text(order, cell.model_dump_json()))


def known(monkeypatch: pytest.MonkeyPatch, answer: look.Answer) -> None:
    monkeypatch.setattr(look, "answer_of", lambda _address: answer)


def test_of_many_starts_of_one_id_one_begins(reserved: tuple[CellDir, AttemptDir]) -> None:
    faults: list[str] = []
    threads = [
        threading.Thread(target=lambda: faults.append(begin(*reserved, "one"))) for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults.count("") == 1
    assert faults.count("was begun by another start of its job") == 19


def test_a_node_without_the_runs_folder_says_so(folder: RunFolder) -> None:
    argv = [sys.executable, "-m", "orchestrator.launch.ray.task", f"{folder.path}/9", "one"]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 66
    assert "every node of the Ray sees" in done.stderr


STATES = [
    # (what the run directory says, what the server says, the state)
    ("reserved", None, "planned"),
    ("reserved", RayJob("PENDING"), "pending"),
    ("reserved", RayJob("RUNNING"), "pending"),
    ("reserved", RayJob("FAILED", "exit code 127: command not found"), "failed"),
    ("reserved", RayJob("FAILED", "Job supervisor actor failed to start within 900"), "preempted"),
    ("reserved", RayJob("FAILED", "Failed to set up runtime environment"), "failed"),
    ("reserved", RayJob("STOPPED"), "cancelled"),
    ("beating", None, "running"),
    ("beating", RayJob("FAILED"), "running"),
    ("silent", None, "failed"),
    ("silent", RayJob("RUNNING"), "running"),
    ("silent", RayJob("FAILED", "killed due to memory running low"), "failed"),
    ("silent", RayJob("STOPPED"), "cancelled"),
    ("silent", "no answer", "unknown"),
    ("reserved", "no answer", "unknown"),
    ("preempted", RayJob("FAILED"), "preempted"),
    ("preempted", RayJob("STOPPED"), "cancelled"),
    ("preempted", "no answer", "preempted"),
]


@pytest.mark.parametrize(("disk", "server", "state"), STATES)
def test_neither_disk_nor_server_is_believed_alone(
    monkeypatch: pytest.MonkeyPatch,
    reserved: tuple[CellDir, AttemptDir],
    disk: str,
    server: RayJob | str | None,
    state: str,
) -> None:
    cell_dir, attempt = reserved
    if disk != "reserved":
        attempt.heartbeat.touch()
        attempt.job.write_text('{"host": "another"}')
    if disk == "silent":
        late = time.time() - 100
        os.utime(attempt.heartbeat, (late, late))
    if disk == "preempted":
        attempt.write_exit(ended("preempted"))
    jobs = {} if server is None else {"one": server}
    known(monkeypatch, server if isinstance(server, str) else jobs)
    with look.as_submitter(str(cell_dir.path.parents[1])):
        seen = cell_dir.state(poll=look.polled_state)
    assert seen.state == state, seen
    if seen.state == "failed":
        assert seen.exit is not None
        assert seen.exit.failure
        assert "\n" not in seen.exit.message
