"""What cells printed, read back whole, cut, followed and summed up; what a terminal shows."""

import os
import pty
import threading

import pytest

from orchestrator.errors import SelectionError
from orchestrator.launch.local import launch
from orchestrator.launch.logs import logs
from orchestrator.rundir import RunFolder
from orchestrator.runs.logs import errors, follow
from orchestrator.runs.plan import plan
from orchestrator.runs.watch import watch
from tests.cluster.waiting import wait_for
from tests.launch.kit import Orch, ended, leave, make_cell, units

pytestmark = pytest.mark.usefixtures("fake")


def test_the_last_lines_of_the_last_attempt_or_of_one_that_is_named(folder: RunFolder) -> None:
    cell_dir = leave(folder, make_cell(), ended("failed"), ended())
    first, second = cell_dir.attempts()
    first.stdout.write_text("one\n")
    second.stdout.write_bytes(b"".join(b"line %d\n" % n for n in range(1000)) + b"\xff torn")
    assert logs(cell_dir, lines=2) == "line 999\n\ufffd torn"
    assert logs(cell_dir, attempt=1) == "one\n"
    assert logs(cell_dir, "stderr") == ""
    with pytest.raises(SelectionError, match="has no attempt 7"):
        logs(cell_dir, attempt=7)


def test_following_shows_everything_once_and_ends_with_the_cell(
    orch: Orch, folder: RunFolder
) -> None:
    code = "program:import time\nfor n in range(20): print('tick', n, flush=True); time.sleep(0.05)"
    one = make_cell(instruction=code)
    process = orch.start([one], folder)
    wait_for(lambda: (folder.cell(one).path / "attempts" / "1" / "stdout").exists())
    pieces: list[str] = []
    reader = threading.Thread(target=lambda: pieces.extend(follow(folder.cell(one))))
    reader.start()
    process.communicate(timeout=300)
    reader.join(timeout=10)
    assert not reader.is_alive()
    assert "".join(pieces).splitlines() == [f"tick {n}" for n in range(20)]
    assert len([p for p in pieces if p]) > 2, "it came bit by bit"


def test_errors_tell_the_class_the_message_and_the_last_lines(folder: RunFolder) -> None:
    cells = [make_cell(0), make_cell(1, "fail"), make_cell(2, "memory"), make_cell(3, "collapse")]
    launch(cells, folder)
    told = errors(plan(cells, folder).rows, lines=1)
    assert [(e.failure, e.message, e.last_lines) for e in told] == [
        ("error", "ValueError: told to fail", "ValueError: told to fail\n"),
        ("out_of_memory", "MemoryError: told to", "MemoryError: told to\n"),
    ]
    assert [e.cell.rpartition("-")[2] for e in told] == [cells[1].id, cells[2].id]
    assert units(folder, cells[1]) == [1]


def test_a_terminal_gets_a_table_that_goes_away(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    ours, theirs = pty.openpty()
    cells = [make_cell(0, "slow", steps=20)]
    with os.fdopen(theirs, "w") as stream:
        with watch(cells, folder, stream) as show:
            launch(cells, folder, on_event=show)
        stream.flush()
        shown = os.read(ours, 1 << 20).decode()
    os.close(ours)
    assert "/20" in shown
    assert "0 of 1 cells done, 1 running" in shown
    assert "[1/1] study-k1.reward-s0: trained in" in shown
    assert "\x1b[2K" in shown, "the table is erased"
