"""What a person sees, on a terminal and in a file."""

import os
import pty

import pytest

from orchestrator.launch.local import launch
from orchestrator.rundir import RunFolder
from orchestrator.runs.watch import watch
from tests.launch.kit import make_cell

pytestmark = pytest.mark.usefixtures("fake")


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
