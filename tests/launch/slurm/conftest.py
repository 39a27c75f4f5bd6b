"""The fake backend on a real cluster."""

from collections.abc import Callable, Iterator, Sequence

import pytest

from orchestrator.launch.slurm import poll
from orchestrator.launch.slurm import scheduler as words
from orchestrator.launch.slurm.submit import Submitted, submit
from orchestrator.records import Cell
from orchestrator.rundir import CellState, RunFolder
from orchestrator.runs.state import read_state
from orchestrator.runs.wait import SubmitRequest, start, wait
from orchestrator.spec.site_options import SlurmOptions
from tests.cluster import Cluster
from tests.launch.kit import CellsOfFolder


class Site(CellsOfFolder):
    """A folder on the cluster, and what a person does with it."""

    def __init__(self, cluster: Cluster, folder: RunFolder):
        super().__init__(folder)
        self.cluster = cluster
        self.options = SlurmOptions(time_limit_hours=0.2, signal_seconds=30, memory_gib=0.4)

    def set(self, **options: object) -> None:
        plain = self.options.model_dump(mode="json") | options
        self.options = SlurmOptions.model_validate(plain)

    def submit(self, *cells: Cell) -> Submitted:
        return submit(cells, self.folder, self.options, tell=self.told.append)

    def request(self, cells: Sequence[Cell]) -> SubmitRequest:
        return SubmitRequest(
            cells, self.folder, self.options, evaluate=False, tell=self.told.append
        )

    def start(self, *cells: Cell) -> Submitted:
        """`orch run`."""
        return start(self.request(cells))

    def wait(self, *cells: Cell) -> dict[str, CellState]:
        """`orch run --wait`, after the first submission."""
        return {cell.id: seen for cell, seen in wait(self.request(cells)).states}

    def look(self, cell: Cell) -> CellState:
        """What the scheduler says at this moment, nothing remembered."""
        poll.LOOKS.forget()
        return read_state(self.folder.cell(cell))

    def until(self, cell: Cell, state: str, seconds: float = 60) -> CellState:
        self.wait_for(lambda: self.look(cell).state == state, cell, seconds)
        return self.look(cell)

    def until_units(self, cell: Cell, count: int, seconds: float = 60) -> None:
        self.wait_for(lambda: self.units(cell) >= count, cell, seconds)

    def wait_for(self, reached: Callable[[], object], cell: Cell, seconds: float = 60) -> None:
        """Return when it is so; else fail with what jobs and the cell's attempts have printed."""
        self.wait_until(reached, lambda: self.words(cell), seconds)

    def job(self, cell: Cell) -> str:
        """`<array>_<index>` of its last submission."""
        from orchestrator.launch.slurm import submissions

        order = self.attempts(cell)[-1].read_order()
        return f"{submissions.read(self.folder)[order['submission']].job}_{order['index']}"

    def words(self, cell: Cell) -> str:
        logs = [*self.folder.path.glob("slurm/*/*.log")]
        logs += [a.stderr for a in self.attempts(cell)]
        said = [p.read_text(errors="replace")[-800:] for p in logs if p.exists()]
        return "\n".join([str(self.look(cell)), *said])


@pytest.fixture
def site(
    cluster: Cluster, folder: RunFolder, fake: object, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Site]:
    poll.LOOKS.forget()
    monkeypatch.setattr(poll.LOOKS, "kept_seconds", 1.0)
    monkeypatch.setattr("orchestrator.runs.wait.POLL_SECONDS", 0.5)
    monkeypatch.setattr(words, "LATE_SECONDS", 12.0)
    yield Site(cluster, folder)
    poll.LOOKS.forget()
