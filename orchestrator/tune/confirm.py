"""Training each search's best once more, on seeds that had no part in choosing it."""

from typing import Any

from orchestrator.collect import collect
from orchestrator.state import RESUMABLE, look
from orchestrator.tune.design import Search
from orchestrator.tune.journal import Journal
from orchestrator.tune.results import confirm_cells, found
from orchestrator.tune.scorer import Scorer
from orchestrator.types import Cell

CONFIRMING = -1
"""The trial's number in cells.jsonl."""


class Confirmation:
    """One search's, from the end of its last trial on."""

    def __init__(self, search: Search, journal: Journal, scorer: Scorer):
        self.search, self.journal, self.scorer = search, journal, scorer
        self.done = not search.tune.block.confirm_seeds
        self._cells: list[Cell] | None = None

    def turn(self, study: Any, lost: set[str]) -> list[Cell]:
        """Cells that want training. To be asked once no trial of the search is open."""
        folder = self.search.experiment.folder
        if self._cells is None:
            winner = found(self.search, study).best
            self._cells = [] if winner is None else confirm_cells(self.search, winner)
            for cell in self._cells:
                self.journal.note_cell(cell.id, self.search.name, CONFIRMING)
        looks = [(cell, look(folder.cell(cell)).state) for cell in self._cells]
        wanted = [cell for cell, state in looks
                  if state in RESUMABLE | {"running"} and cell.id not in lost]  # fmt: skip
        if wanted:
            return wanted
        ended = [cell for cell, state in looks if state == "succeeded"]
        if ended and any(each.is_scored for each in self.search.objectives):
            records = collect(ended, folder)
            self.scorer.ask(records)
            self.done = self.scorer.has(records)
        else:
            self.done = True
        return []
