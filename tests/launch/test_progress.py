"""What a person sees, on a terminal and in a file."""

import os
import pty
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.launch import LaunchEvent
from orchestrator.launch.local import launch
from orchestrator.library.protocol import Backend
from orchestrator.records import Cell
from orchestrator.rundir import RunFolder
from orchestrator.runs.watch import LaunchProgress, watch

Make = Callable[..., Cell]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def attempt(tmp_path: Path, number: int, *steps: int) -> Path:
    directory = tmp_path / str(number)
    directory.mkdir()
    lines = [f'{{"step": {n}, "time": 1, "values": {{"train/reward_mean": 0.5}}}}\n' for n in steps]
    (directory / "metrics.jsonl").write_text("".join(lines))
    return directory


def test_time_left_counts_steps_of_this_run_only(cell: Make, tmp_path: Path) -> None:
    clock = Clock()
    cells = [cell(0, steps=100), cell(1, steps=100)]
    count = LaunchProgress(cells, clock)
    attempt(tmp_path, 1, 60)
    second = attempt(tmp_path, 2)
    count.take(LaunchEvent("started", cells[0], second))
    clock.now += 10
    assert count.seconds_left() is None, "nothing is known yet"
    assert count.fraction() == pytest.approx(0.3)
    (second / "metrics.jsonl").write_text('{"step": 80, "values": {}}\n')
    assert count.fraction() == pytest.approx(0.4)
    assert count.seconds_left() == pytest.approx(120 / 20 * 10)


def test_a_terminal_gets_a_table_that_goes_away(
    fake: Backend, cell: Make, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    ours, theirs = pty.openpty()
    cells = [cell(0, "slow", steps=20)]
    with os.fdopen(theirs, "w") as stream:
        with watch(cells, stream) as display:
            launch(cells, folder, on_event=display.show)
        stream.flush()
        shown = os.read(ours, 1 << 20).decode()
    os.close(ours)
    assert "/20" in shown
    assert "0 of 1 cells done, 1 running" in shown
    assert "[1/1] study-k1.reward-s0: trained in" in shown
    assert "\x1b[2K" in shown, "the table is erased"
