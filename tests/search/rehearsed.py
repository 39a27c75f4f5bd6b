"""Searches whose cells are trained in no time: run directories as training would leave them.

Everything but the training is real: the spec, the cells, the journal, the loop.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from backends.micro.shipped import manifest
from backends.micro.theory import optimum
from orchestrator.records import Cell
from orchestrator.rundir import RESUMABLE, RunFolder
from orchestrator.runs.experiment import Experiment, open_experiment
from orchestrator.runs.state import read_state
from orchestrator.search.design import Search, design
from orchestrator.search.journal import SearchJournal
from orchestrator.search.loop import Run, drive
from orchestrator.search.results import SearchOutcome, outcomes
from tests.launch.kit import ended

ROOT = Path(__file__).parents[2]
GOAL = "eval/accuracy_in_domain"
BLOCK: Mapping[str, Any] = {
    "beta": [0.01, 10],
    "maximize": GOAL,
    "seeds": [0],
    "trials": 6,
}
Values = Mapping[str, float]
Response = Callable[[Cell], Values]


@cache
def _opened() -> Experiment:
    return open_experiment(ROOT / "experiments" / "beta_sweep.yaml", ["site=local"])


def experiment(
    tmp_path: Path, kl: Sequence[str] = ("k1.reward",), tune: Mapping[str, Any] = BLOCK
) -> Experiment:
    """beta_sweep.yaml with its runs in tmp_path, a study of these configurations and this `tune`
    block."""
    found = _opened()
    (study,) = found.spec.studies
    studies = (study.model_copy(update={"axes": {**study.axes, "kl": list(kl)}}),)
    site = found.spec.site.model_copy(update={"runs_dir": str(tmp_path / "runs")})
    spec = found.spec.model_copy(update={"tune": dict(tune), "site": site, "studies": studies})
    return replace(found, spec=spec, folder=RunFolder.of(tmp_path / "runs", spec.name, "micro"))


def theory(cell: Cell) -> Values:
    """The optimum to which an unbiased KL term converges: accuracy - 0.5 * KL, best at beta 0.5."""
    return {GOAL: objective_at(cell.settings.kl.beta)}


def objective_at(beta: float) -> float:
    best = optimum(manifest("elder").chances["sort"], beta)
    return best.accuracy - 0.5 * best.kl_reverse


def train(folder: RunFolder, cell: Cell, values: Values, *, state: str = "succeeded") -> None:
    """Leaves the directory of a cell as an attempt that ended like this would."""
    folder.open()
    cell_dir = folder.cell(cell)
    cell_dir.make(cell)
    attempt = cell_dir.open_attempt()
    attempt.job.write_text(json.dumps({"pid": 1, "birth": "long ago", "host": "elsewhere"}))
    last = {"step": cell.settings.num_train_steps, "time": 1e9, "values": dict(values)}
    attempt.metrics.write_text(json.dumps(last) + "\n")
    attempt.write_exit(ended(state, failure="" if state == "succeeded" else "error"))


@dataclass
class House:
    """One experiment with its searches; `run` drives them to their end."""

    experiment: Experiment
    searches: list[Search]
    trained: list[Cell]

    @property
    def folder(self) -> RunFolder:
        return self.experiment.folder

    def journal(self) -> SearchJournal:
        return SearchJournal(self.folder, self.searches[0].block.name)

    def run(
        self, response: Response = theory, told: list[str] | None = None
    ) -> list[SearchOutcome]:
        """Search to the end; every cell that has not ended is trained by `response`."""

        def train_all(cells: Sequence[Cell]) -> bool:
            for cell in cells:
                if read_state(self.folder.cell(cell)).state in RESUMABLE:
                    train(self.folder, cell, response(cell))
                    self.trained.append(cell)
            return True

        assert self.drive(train_all, told)
        return self.found()

    def drive(self, run: Run, told: list[str] | None = None) -> bool:
        self.folder.open()
        journal = self.journal()
        with journal.controlling():
            tell = (lambda _: None) if told is None else told.append
            return drive(self.searches, journal, run, tell)

    def stopped(self) -> list[Cell]:
        """The cells of a search that is stopped at its first trials."""
        begun: list[Cell] = []

        def stop(cells: Sequence[Cell]) -> bool:
            begun.extend(cells)
            return False

        assert not self.drive(stop)
        return begun

    def found(self) -> list[SearchOutcome]:
        return outcomes(self.searches, self.journal())


def house(tmp_path: Path, kl: Sequence[str] = ("k1.reward",), **block: Any) -> House:
    """beta_sweep.yaml with BLOCK, changed by `block`."""
    opened = experiment(tmp_path, kl, {**BLOCK, **block})
    return House(opened, design(opened), [])


def noise(name: str, spread: float) -> float:
    """A number of this name's: normal, with this standard deviation."""
    return Random(name).gauss(0, spread)  # noqa: S311  (noise)
