"""Training what each search has chosen once more, on seeds that had no part in choosing it."""

from typing import Any

from orchestrator.collect import collect
from orchestrator.state import look
from orchestrator.tune.design import Search
from orchestrator.tune.journal import Journal
from orchestrator.tune.launching import Launching
from orchestrator.tune.results import confirm_cells, found
from orchestrator.tune.scorer import Scoring
from orchestrator.types import Cell

CONFIRMING = -1
"""The trial's number in cells.jsonl."""


class Confirmation:
    """One search's, from the end of its last trial on."""

    def __init__(
        self, search: Search, journal: Journal, scorer: Scoring, launching: Launching
    ) -> None:
        self.search, self.journal, self.scorer = search, journal, scorer
        self.launching = launching
        self.done = not search.tune.block.confirm_seeds
        self._cells: list[Cell] | None = None

    def turn(self, study: Any, lost: set[str]) -> list[Cell]:
        """Cells that want training. To be asked once no trial of the search is open."""
        folder = self.search.experiment.folder
        if self._cells is None:
            chosen = found(self.search, study).chosen
            self._cells = [] if chosen is None else confirm_cells(self.search, chosen)
            for cell in self._cells:
                self.journal.note_cell(cell.id, self.search.name, CONFIRMING)
        looks = [(cell, look(folder.cell(cell))) for cell in self._cells]
        words = {cell.id: self.launching.verdict(folder.cell(cell), seen)
                 for cell, seen in looks if cell.id not in lost}  # fmt: skip
        if {"train", "wait"} & set(words.values()):
            return [cell for cell, _ in looks if words.get(cell.id) == "train"]
        ended = [cell for cell, seen in looks if seen.state == "succeeded"]
        if ended and any(each.is_scored for each in self.search.objectives):
            records = collect(ended, folder)
            self.scorer.ask(records)
            self.done = self.scorer.has(records)
        else:
            self.done = True
        return []
