"""The contract of a launcher: the tests that each one inherits, over cells of the fake backend.

A quick cell prints a line and succeeds; a long one goes on from a checkpoint when it is started
again; one fails by itself; one cannot be expressed by its backend. `submit` is called in a process
of its own: it may return only when its cells have ended, and it is killed.
"""

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.context import ForkProcess
from typing import ClassVar, Literal

import pytest

from orchestrator.errors import OrchError, SelectionError
from orchestrator.launch.launcher import Launcher
from orchestrator.launch.logs import logs
from orchestrator.records import Cell
from tests.launch.kit import content, make_cell

Kind = Literal["quick", "long", "fails", "refused"]
TOLD: dict[Kind, tuple[str, int]] = {
    "quick": ("", 3),
    "long": ("slow", 2000),
    "fails": ("fail", 3),
    "refused": ("refuse", 3),
}
"""Kind -> the instruction of the cell, and its train steps."""


class LauncherContract:
    """The rules of orchestrator.launch.launcher.Launcher."""

    seconds: ClassVar[float] = 120.0
    """Seconds within which a cell must reach a state."""

    @pytest.fixture
    def launcher(self) -> Launcher:
        """Return the launcher, over a folder of the test's own."""
        raise NotImplementedError

    def cell(self, kind: Kind, seed: int = 0) -> Cell:
        """Return a cell of this kind; cells of other seeds differ."""
        return make_cell(seed, *TOLD[kind])

    # ------------------------------------------------------------ what the tests do

    @contextmanager
    def submitting(self, launcher: Launcher, cells: Sequence[Cell]) -> Iterator[ForkProcess]:
        """Submit in another process. Kill the process at the end if it still runs."""
        process = multiprocessing.get_context("fork").Process(target=launcher.submit, args=(cells,))
        process.start()
        try:
            yield process
        finally:
            process.kill()
            process.join(self.seconds)

    def until(self, launcher: Launcher, cell: Cell, *states: str) -> None:
        """Return when the cell is in one of these states."""

        def reached() -> str:
            (state,) = launcher.ask([cell])
            return "" if state.state in states else f"{state.state} ({state.fault or state.exit})"

        self.wait(reached, f"{cell.slug} to be {' or '.join(states)}")

    def wait(self, missing: Callable[[], str], what: str) -> None:
        """Return when nothing is missing any more."""
        deadline = time.monotonic() + self.seconds
        while why := missing():
            assert time.monotonic() < deadline, f"waited {self.seconds:g} s for {what}: {why}"
            time.sleep(0.3)

    def train(self, launcher: Launcher, *cells: Cell) -> None:
        """Submit cells, and return when all have succeeded."""
        with self.submitting(launcher, cells):
            for cell in cells:
                self.until(launcher, cell, "succeeded")

    def begun(self, launcher: Launcher, cell: Cell) -> str:
        """Return what is missing until the cell has left a checkpoint."""
        paths = launcher.folder.cell(cell).checkpoints
        return "" if paths.exists() and any(paths.iterdir()) else "no checkpoint"

    # ------------------------------------------------------------ the rules

    def test_a_cell_is_planned_until_somebody_submits_it(self, launcher: Launcher) -> None:
        cells = [self.cell("quick", seed) for seed in range(2)]
        assert [state.state for state in launcher.ask(cells)] == ["planned"] * 2
        with pytest.raises(SelectionError, match="was never started"):
            logs(launcher.folder.cell(cells[0]))

    def test_cells_come_to_their_end_once_and_asking_changes_nothing(
        self, launcher: Launcher
    ) -> None:
        cells = [self.cell("quick", seed) for seed in range(2)]
        self.train(launcher, *cells)
        before = content(launcher.folder.path)
        assert [state.state for state in launcher.ask(cells)] == ["succeeded"] * 2
        assert all(logs(launcher.folder.cell(cell)).strip() for cell in cells)
        assert content(launcher.folder.path) == before
        assert list(launcher.submit(cells)) == []
        for cell in cells:
            (attempt,) = launcher.folder.cell(cell).attempts()
            record = attempt.read_exit()
            assert record.state == "succeeded"

    def test_a_failure_is_told_and_waits_for_a_person(self, launcher: Launcher) -> None:
        cell = self.cell("fails")
        with self.submitting(launcher, [cell]):
            self.until(launcher, cell, "failed")
        (state,) = launcher.ask([cell])
        assert state.exit.failure
        assert state.exit.message
        assert list(launcher.submit([cell])) == []
        assert len(launcher.folder.cell(cell).attempts()) == 1

    def test_a_cell_at_work_is_cancelled_and_stays_so(self, launcher: Launcher) -> None:
        cell = self.cell("long")
        with self.submitting(launcher, [cell]):
            self.until(launcher, cell, "running")
            self.wait(lambda: self.begun(launcher, cell), "its first checkpoint")
            (result,) = launcher.cancel([cell], "by the contract")
            assert result.done, result.note
            self.until(launcher, cell, "cancelled")
        assert list(launcher.submit([cell])) == []
        (state,) = launcher.ask([cell])
        assert state.exit.message == "by the contract"

    def test_a_cell_may_be_cancelled_before_it_is_submitted(self, launcher: Launcher) -> None:
        cancelled, free = self.cell("quick", 0), self.cell("quick", 1)
        (result,) = launcher.cancel([cancelled], "by the contract")
        assert result.done, result.note
        self.train(launcher, free)
        refused = launcher.cancel([cancelled, free], "once more")
        assert [result.done for result in refused] == [False, False]
        assert all(result.note for result in refused), "each says why it was left alone"
        assert list(launcher.submit([cancelled, free])) == []
        assert [state.state for state in launcher.ask([cancelled, free])] == [
            "cancelled",
            "succeeded",
        ]

    def test_who_submits_may_be_killed(self, launcher: Launcher) -> None:
        """Nothing is lost, and nothing done twice: it is submitted again and comes to its end."""
        cell, quick = self.cell("long"), self.cell("quick", 1)
        with self.submitting(launcher, [cell]) as process:
            self.wait(lambda: self.begun(launcher, cell), "its first checkpoint")
            process.kill()
            process.join(self.seconds)
        with self.submitting(launcher, [cell, quick]):
            self.until(launcher, quick, "succeeded")
            self.until(launcher, cell, "running")
            launcher.cancel([cell], "enough")
            self.until(launcher, cell, "cancelled")
        states = [a.read_exit() for a in launcher.folder.cell(cell).attempts()]
        assert sum(record is None for record in states) <= 1, "one attempt was killed, at most"

    def test_one_cell_that_cannot_be_expressed_stops_all(self, launcher: Launcher) -> None:
        cells = [self.cell("quick"), self.cell("refused", 1)]
        with pytest.raises(OrchError, match="nothing was started"):
            launcher.submit(cells)
        assert [state.state for state in launcher.ask(cells)] == ["planned"] * 2

    def test_what_jobs_ask_for_counts_every_cell(self, launcher: Launcher) -> None:
        cells = [self.cell("quick", seed) for seed in range(3)]
        assert sum(job.cells for job in launcher.resources(cells)) == 3
        assert list(launcher.resources([])) == []
