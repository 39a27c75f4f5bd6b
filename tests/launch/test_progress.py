"""What a person sees, on a terminal and in a file."""

import io
import os
import pty
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.launch import LaunchEvent
from orchestrator.launch.local import launch
from orchestrator.library.protocol import Backend
from orchestrator.records import Cell, Outcome
from orchestrator.rundir import RunFolder
from orchestrator.runs.watch import LatestMetrics, LaunchProgress, duration, latest_metrics, watch
from tests.launch.kit import ended

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


def test_the_lines_of_each_event(cell: Make, tmp_path: Path) -> None:
    one, two, three = cell(0), cell(1), cell(2)
    count = LaunchProgress([one, two, three])
    where = attempt(tmp_path, 1, 3)
    assert count.take(LaunchEvent("started", one, where)) == ""
    assert count.summary() == "0 of 3 cells done, 1 running"
    assert count.take(LaunchEvent("ended", one, where, ended())) == (
        "[1/3] study-k1.reward-s0: trained in 10.0 s, reward 0.500"
    )
    assert "it is started again, from its last" in count.take(
        LaunchEvent("lost", two, where, again=True)
    )
    assert "left for the next run" in count.take(LaunchEvent("lost", two, where))
    collapsed = ended(outcome=Outcome(kind="collapsed", cause="reward", step=7))
    assert count.take(LaunchEvent("ended", two, where, collapsed)).endswith(
        "s1: collapsed (reward) at step 7"
    )
    failed = ended("failed", failure="error", message="ValueError: [red]boom[/]\nand more")
    assert count.take(LaunchEvent("ended", three, where, failed)).endswith(
        "s2: failed (error) ValueError: [red]boom[/]"
    )
    assert count.summary() == "3 of 3 cells done, 0 running, 1 collapsed, 1 failed"
    assert count.take(LaunchEvent("tick")) == ""


def test_a_stopped_cell_is_not_done(cell: Make) -> None:
    count = LaunchProgress([cell()])
    assert "goes on from its last checkpoint" in count.take(
        LaunchEvent("ended", cell(), None, ended("preempted"))
    )
    assert count.done == 0


def test_a_cell_that_another_orch_had_is_counted_when_it_comes(cell: Make, tmp_path: Path) -> None:
    count = LaunchProgress([cell(0)])
    count.take(LaunchEvent("ended", cell(1), None, ended()))
    assert count.summary() == "1 of 2 cells done, 0 running"


def test_now_survives_a_torn_line_and_strangers(tmp_path: Path) -> None:
    where = attempt(tmp_path, 1, 4)
    with (where / "metrics.jsonl").open("a") as file:
        file.write('[1]\n{"step": "x"}\n{"step": 5, "val')
    assert latest_metrics(where) == LatestMetrics(4, 0.5)
    assert latest_metrics(tmp_path / "nowhere") == LatestMetrics()


@pytest.mark.parametrize(
    ("seconds", "text"), [(4.4, "4 s"), (100, "2 min"), (3 * 3600 + 300, "3 h 5 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_plain_lines_where_there_is_no_terminal(
    fake: Backend, cell: Make, folder: RunFolder
) -> None:
    cells = [cell(0), cell(1, "fail")]
    stream = io.StringIO()
    with watch(cells, stream) as display:
        launch(cells, folder, workers=1, on_event=display.show)
    first, second = stream.getvalue().splitlines()
    assert first.startswith("[1/2] study-k1.reward-s0: trained in ")
    assert second == "[2/2] study-k1.reward-s1: failed (error) ValueError: told to fail"


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
