"""The contract of a place that trains: the tests each one inherits, over cells of the fake backend.

A quick cell prints a line and succeeds; a long one goes on from a checkpoint when it is started
again; one fails by itself; one cannot be expressed by its backend. `submit` is called in a process
of its own: it may return only when its cells have ended, and it is killed.
"""

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.context import ForkProcess
from typing import ClassVar, Literal, NamedTuple

import pytest

from orchestrator.errors import OrchError, SelectionError
from orchestrator.launch.logs import logs
from orchestrator.launch.slurm import poll
from orchestrator.records import Cell
from orchestrator.rundir import CellState, RunFolder
from orchestrator.runs import operations
from orchestrator.runs.state import read_state
from tests.launch.kit import content, make_cell

Kind = Literal["quick", "long", "fails", "refused"]
TOLD: dict[Kind, tuple[str, int]] = {
    "quick": ("", 3),
    "long": ("slow", 2000),
    "fails": ("fail", 3),
    "refused": ("refuse", 3),
}
"""Kind -> the instruction of the cell, and its train steps."""


class Place(NamedTuple):
    """A place that trains, over a folder of the test's own."""

    folder: RunFolder
    submit: Callable[[Sequence[Cell]], Sequence[Cell]]
    """Let cells be trained that need it. Return them, before their end or after it."""

    def ask(self, cells: Sequence[Cell]) -> list[CellState]:
        poll.LOOKS.forget()
        with poll.one_look(self.folder):
            return [read_state(self.folder.cell(cell)) for cell in cells]

    def cancel(self, cells: Sequence[Cell], why: str) -> list[operations.OperationResult]:
        return operations.cancel(cells, self.folder, why)


class PlaceContract:
    """The rules of a place that trains cells."""

    seconds: ClassVar[float] = 120.0
    """Seconds within which a cell must reach a state."""

    @pytest.fixture
    def place(self) -> Place:
        """Return the place."""
        raise NotImplementedError

    def cell(self, kind: Kind, seed: int = 0) -> Cell:
        """Return a cell of this kind; cells of other seeds differ."""
        return make_cell(seed, *TOLD[kind])

    # ------------------------------------------------------------ what the tests do

    @contextmanager
    def submitting(self, place: Place, cells: Sequence[Cell]) -> Iterator[ForkProcess]:
        """Submit in another process. Kill the process at the end if it still runs."""
        process = multiprocessing.get_context("fork").Process(target=place.submit, args=(cells,))
        process.start()
        try:
            yield process
        finally:
            process.kill()
            process.join(self.seconds)

    def until(self, place: Place, cell: Cell, *states: str) -> None:
        """Return when the cell is in one of these states."""

        def reached() -> str:
            (state,) = place.ask([cell])
            return "" if state.state in states else f"{state.state} ({state.fault or state.exit})"

        self.wait(reached, f"{cell.slug} to be {' or '.join(states)}")

    def wait(self, missing: Callable[[], str], what: str) -> None:
        """Return when nothing is missing any more."""
        deadline = time.monotonic() + self.seconds
        while why := missing():
            assert time.monotonic() < deadline, f"waited {self.seconds:g} s for {what}: {why}"
            time.sleep(0.3)

    def train(self, place: Place, *cells: Cell) -> None:
        """Submit cells, and return when all have succeeded."""
        with self.submitting(place, cells):
            for cell in cells:
                self.until(place, cell, "succeeded")

    def begun(self, place: Place, cell: Cell) -> str:
        """Return what is missing until the cell has left a checkpoint."""
        paths = place.folder.cell(cell).checkpoints
        return "" if paths.exists() and any(paths.iterdir()) else "no checkpoint"

    # ------------------------------------------------------------ the rules

    def test_a_cell_is_planned_until_somebody_submits_it(self, place: Place) -> None:
        cells = [self.cell("quick", seed) for seed in range(2)]
        assert [state.state for state in place.ask(cells)] == ["planned"] * 2
        with pytest.raises(SelectionError, match="was never started"):
            logs(place.folder.cell(cells[0]))

    def test_cells_come_to_their_end_once_and_asking_changes_nothing(self, place: Place) -> None:
        cells = [self.cell("quick", seed) for seed in range(2)]
        self.train(place, *cells)
        before = content(place.folder.path)
        assert [state.state for state in place.ask(cells)] == ["succeeded"] * 2
        assert all(logs(place.folder.cell(cell)).strip() for cell in cells)
        assert content(place.folder.path) == before
        assert list(place.submit(cells)) == []
        for cell in cells:
            (attempt,) = place.folder.cell(cell).attempts()
            record = attempt.read_exit()
            assert record.state == "succeeded"

    def test_a_failure_is_told_and_waits_for_a_person(self, place: Place) -> None:
        cell = self.cell("fails")
        with self.submitting(place, [cell]):
            self.until(place, cell, "failed")
        (state,) = place.ask([cell])
        assert state.exit.failure
        assert state.exit.message
        assert list(place.submit([cell])) == []
        assert len(place.folder.cell(cell).attempts()) == 1

    def test_a_cell_at_work_is_cancelled_and_stays_so(self, place: Place) -> None:
        cell = self.cell("long")
        with self.submitting(place, [cell]):
            self.until(place, cell, "running")
            self.wait(lambda: self.begun(place, cell), "its first checkpoint")
            (result,) = place.cancel([cell], "by the contract")
            assert result.done, result.note
            self.until(place, cell, "cancelled")
        assert list(place.submit([cell])) == []
        (state,) = place.ask([cell])
        assert state.exit.message == "by the contract"

    def test_a_cell_may_be_cancelled_before_it_is_submitted(self, place: Place) -> None:
        cancelled, free = self.cell("quick", 0), self.cell("quick", 1)
        (result,) = place.cancel([cancelled], "by the contract")
        assert result.done, result.note
        self.train(place, free)
        refused = place.cancel([cancelled, free], "once more")
        assert [result.done for result in refused] == [False, False]
        assert all(result.note for result in refused), "each says why it was left alone"
        assert list(place.submit([cancelled, free])) == []
        assert [state.state for state in place.ask([cancelled, free])] == [
            "cancelled",
            "succeeded",
        ]

    def test_who_submits_may_be_killed(self, place: Place) -> None:
        """Nothing is lost, and nothing done twice: it is submitted again and comes to its end."""
        cell, quick = self.cell("long"), self.cell("quick", 1)
        with self.submitting(place, [cell]) as process:
            self.wait(lambda: self.begun(place, cell), "its first checkpoint")
            process.kill()
            process.join(self.seconds)
        with self.submitting(place, [cell, quick]):
            self.until(place, quick, "succeeded")
            self.until(place, cell, "running")
            place.cancel([cell], "enough")
            self.until(place, cell, "cancelled")
        states = [a.read_exit() for a in place.folder.cell(cell).attempts()]
        assert sum(record is None for record in states) <= 1, "one attempt was killed, at most"

    def test_one_cell_that_cannot_be_expressed_stops_all(self, place: Place) -> None:
        cells = [self.cell("quick"), self.cell("refused", 1)]
        with pytest.raises(OrchError, match="nothing was started"):
            place.submit(cells)
        assert [state.state for state in place.ask(cells)] == ["planned"] * 2
