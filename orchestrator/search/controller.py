"""The controller of searches: asks Optuna for trials, and reports results from run directories.

`Controller.tick` never waits: it reads the state of every open trial, reports the ended ones,
prunes, asks for new ones, and returns the cells that should be trained now. A driver trains them:
`local` with workers on this machine, `slurm` with jobs. If a controller dies, the next one goes on
with its trials: the journal has them, and their cells are on disk.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from orchestrator.analysis.text import counted
from orchestrator.evaluate import read_scores
from orchestrator.records import Cell, Record, Score
from orchestrator.rundir import RESUMABLE, CellDir, CellState, RunFolder
from orchestrator.runs import operations
from orchestrator.runs.collect import collect
from orchestrator.runs.state import read_state
from orchestrator.search.block import FIELD, TuneBlock, distributions, pruner, sampler
from orchestrator.search.design import Search
from orchestrator.search.journal import SearchJournal
from orchestrator.search.results import (
    beta_text,
    confirmation_cells,
    is_own,
    mean,
    objective_values,
    outcome,
)

if TYPE_CHECKING:
    import optuna

READ_SECONDS = 2.0
"""Seconds between two readings of the metrics of cells in training."""

TrainingDecision = Literal["train", "wait", "over"]
"""train: the driver gets the cell. wait: the cell is running. over: the cell gives no further
result."""


class DriverRules(NamedTuple):
    """The rules by which a driver treats cells."""

    decide: Callable[[CellDir, CellState], TrainingDecision]
    once: bool
    """True if the driver gets a cell once and then follows it to its end."""


class TrialScorer(Protocol):
    """A scorer of records: a thread on this machine, or jobs on a cluster."""

    def request(self, records: Sequence[Record]) -> None:
        """Request scores of these records, unless they were requested already."""

    def is_done(self, records: Sequence[Record]) -> bool:
        """Return True once each of the records has a score or cannot get one."""

    def fault(self, records: Sequence[Record]) -> str:
        """Return why some records cannot be scored; empty if all can."""

    def scores(self, records: Sequence[Record]) -> list[Score]:
        """Return the scores that exist so far for these records."""


@dataclass
class OpenTrial:
    """A trial whose end Optuna does not know yet."""

    search: Search
    number: int
    optuna_trial: Any
    beta: float
    cells: list[Cell]
    """One cell per seed."""
    records: dict[str, Record] = field(default_factory=dict)
    """Cell id -> record, of the cells that have ended."""
    read_at: float = -math.inf
    """When its running cells were last read, on the monotonic clock."""
    reported: set[int] = field(default_factory=set)
    """Train steps whose values Optuna already has."""

    def __str__(self) -> str:
        return f"{self.search.name} trial {self.number} ({beta_text(self.beta)})"


class Controller:
    """The one process that drives the searches of a journal."""

    def __init__(
        self,
        searches: Sequence[Search],
        journal: SearchJournal,
        scorer: TrialScorer,
        rules: DriverRules,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.searches, self.journal, self.scorer = searches, journal, scorer
        self.rules, self.tell = rules, tell
        self.block = searches[0].block
        self.folder: RunFolder = searches[0].experiment.folder
        self.grid = {cell.id: cell for cell in searches[0].experiment.cells}
        self.studies: dict[str, optuna.Study] = {
            search.name: journal.study(search, pruner=_pruner(search)) for search in searches
        }
        if journal.damage:
            tell(journal.damage)
        self.open: dict[tuple[str, int], OpenTrial] = {}
        """(search, number) -> the trials that have not ended."""
        self.lost: set[str] = set()
        """Cells whose process was killed too often."""
        self._handed: set[str] = set()
        self._confirmations = [_Confirmation(s, journal, scorer, rules) for s in searches]
        for search in searches:
            self._go_on(search)

    @property
    def done(self) -> bool:
        """Return True once this controller has nothing left to do."""
        busy = self.open or self._next_search()
        return not busy and all(confirmation.done for confirmation in self._confirmations)

    def tick(self) -> list[Cell]:
        """Read the state of everything once. Return the cells to train."""
        wanted: dict[str, Cell] = {}
        for trial in list(self.open.values()):
            wanted.update((cell.id, cell) for cell in self._follow(trial))
        while len(self.open) < self.block.parallel and (search := self._next_search()):
            wanted.update((cell.id, cell) for cell in self._follow(self._ask(search)))
        for confirmation in self._confirmations:
            if not confirmation.done and self._is_over(confirmation.search):
                study = self.studies[confirmation.search.name]
                wanted.update((c.id, c) for c in confirmation.tick(study, self.lost))
        if not self.rules.once:
            return list(wanted.values())
        new = [cell for cell in wanted.values() if cell.id not in self._handed]
        self._handed.update(cell.id for cell in new)
        return new

    def give_up(self, cell: Cell) -> None:
        """Record that the driver gave up a cell, because its process was killed each time."""
        self.lost.add(cell.id)

    def add_grid_results(self) -> None:
        """Add the grid's results to each search that reuses them. Report how many were added."""
        for search in self.searches:
            added = add_grid_results(search, self.studies[search.name])
            if added:
                self.tell(f"{search.name}: {added} trials taken from the grid's results")

    # ------------------------------------------------------------------ asking

    def _next_search(self) -> Search | None:
        """Return the search with the fewest trials, of those that may continue."""
        counts = {search.name: self._count(search.name) for search in self.searches}
        unfinished = [s for s in self.searches if counts[s.name] < self.block.trials]
        return min(unfinished, key=lambda search: counts[search.name], default=None)

    def _count(self, name: str) -> int:
        """Return the number of trials that the search started itself, without reused ones."""
        return sum(map(is_own, self.studies[name].get_trials(deepcopy=False)))

    def _is_over(self, search: Search) -> bool:
        """Return True once no trial of the search is open and none may be started."""
        is_open = any(trial.search is search for trial in self.open.values())
        return self._count(search.name) >= self.block.trials and not is_open

    def _ask(self, search: Search) -> OpenTrial:
        """Return a new trial."""
        study = self.studies[search.name]
        study.sampler = sampler(self.block, len(study.get_trials(deepcopy=False)))
        trial = study.ask(distributions(self.block))
        return self._begin(search, trial.number, trial.params[FIELD])

    def _begin(self, search: Search, number: int, proposed: float) -> OpenTrial:
        """Return the trial of this number, opened by this controller."""
        study = self.studies[search.name]
        handle = self.journal.trial(study, number)
        beta = self.block.value(proposed)
        # `design` has checked both ends of the range.
        cells = search.cells(beta, self.block.seeds)
        # A cell of the spec's grid is that cell, with the grid's axes.
        cells = [self.grid.get(cell.id, cell) for cell in cells]
        reported = set(study.get_trials(deepcopy=False)[number].intermediate_values)
        trial = OpenTrial(search, number, handle, beta, cells, reported=reported)
        handle.set_user_attr("cells", [cell.id for cell in cells])
        for cell in cells:
            if cell.id not in self.grid:
                self.journal.note_cell(cell.id, search.name, number)
        self.open[search.name, number] = trial
        self.tell(f"{trial}: asked")
        return trial

    def _go_on(self, search: Search) -> None:
        """Open the trials of a search that an earlier controller left open."""
        from optuna.trial import TrialState

        study = self.studies[search.name]
        for frozen in study.get_trials(deepcopy=False):
            if frozen.state.is_finished():
                continue
            if FIELD in frozen.params:
                self._begin(search, frozen.number, frozen.params[FIELD])
            else:  # it was killed before the trial had a β: the sampler proposes a new one
                study.tell(frozen.number, state=TrialState.FAIL)

    # ------------------------------------------------------------------ following

    def _follow(self, trial: OpenTrial) -> Iterator[Cell]:
        """Read the state of a trial once. If it has ended, report it to Optuna; else yield its
        cells to train.
        """
        states = [(cell, read_state(self.folder.cell(cell))) for cell in trial.cells]
        decisions = {cell.id: self._decide(cell, state) for cell, state in states}
        for cell, state in states:
            if decisions[cell.id] == "over" and state.state != "succeeded":
                self._end_without_result(trial, cell, state.state)
                return
        ended = [cell for cell, state in states if state.state == "succeeded"]
        records = self._records(trial, ended)
        is_behind = self._report(trial, records)
        if len(ended) == len(trial.cells):
            self._complete(trial, records)
            return
        if is_behind:
            self._prune(trial)
            return
        yield from (cell for cell, _ in states if decisions[cell.id] == "train")

    def _decide(self, cell: Cell, state: CellState) -> TrainingDecision:
        if cell.id in self.lost:
            return "over"
        return self.rules.decide(self.folder.cell(cell), state)

    def _records(self, trial: OpenTrial, ended: Sequence[Cell]) -> list[Record]:
        """Return the records of a trial's cells that have ended, each read once."""
        for cell in ended:
            if cell.id not in trial.records:
                (trial.records[cell.id],) = collect([cell], self.folder)
        return [trial.records[cell.id] for cell in ended]

    def _report(self, trial: OpenTrial, records: Sequence[Record]) -> bool:
        """Report new values to Optuna's pruner. Return True if the pruner would end the trial."""
        running = [cell for cell in trial.cells if cell.id not in trial.records]
        if not self.block.pruned_by or (
            running and time.monotonic() < trial.read_at + READ_SECONDS
        ):
            return False
        begun = [c for c in running if read_state(self.folder.cell(c)).state == "running"]
        if begun:
            trial.read_at = time.monotonic()
        values = intermediate_values(self.block, [*records, *collect(begun, self.folder)])
        is_behind = False
        for step in sorted(values.keys() - trial.reported):
            trial.optuna_trial.report(values[step], step)
            trial.reported.add(step)
            # Hyperband notes at each step that the trial has reached a rung.
            is_behind = trial.optuna_trial.should_prune()
        return is_behind

    def _prune(self, trial: OpenTrial) -> None:
        """End a trial that is behind the trials before it. Stop its cells."""
        values = counted(len(trial.reported), "value")
        why = f"pruned with {values}: it is behind the trials before it"
        trial.optuna_trial.set_user_attr("why", why)
        self._stop_cells(trial, f"given up by the search: {why}")
        self._close(trial, "PRUNED", None, why)

    def _stop_cells(self, trial: OpenTrial, why: str) -> None:
        """Cancel the cells of a trial that still train.

        Do not cancel cells of the spec's grid or of another open trial.
        """
        others = {
            cell.id for other in self.open.values() if other is not trial for cell in other.cells
        }
        unfinished = [
            cell
            for cell in trial.cells
            if cell.id not in self.grid
            and cell.id not in others
            and self._decide(cell, read_state(self.folder.cell(cell))) != "over"
        ]
        name = self.journal.path.name
        operations.cancel(unfinished, self.folder, f"{why} (orch tune, {name}, {trial})")

    def _complete(self, trial: OpenTrial, records: Sequence[Record]) -> None:
        """Report a trial to Optuna once all its cells have succeeded and have scores."""
        if self.block.is_scored:
            fault = self.scorer.fault(records)
            if fault:
                self._fail(trial, fault)
                return
            if not self.scorer.is_done(records):
                self.scorer.request(records)
                return
        seeds, why = objective_values(self.block, records, self.scorer.scores(records))
        trial.optuna_trial.set_user_attr("seeds", seeds)
        if why:
            self._fail(trial, why)
        else:
            self._close(trial, "COMPLETE", mean(seeds.values()), "")

    def _end_without_result(self, trial: OpenTrial, cell: Cell, state: str) -> None:
        """Fail a trial because one of its cells gives no result. Stop its other cells.

        The trial is pruned instead if an earlier trial of the same cells was pruned.
        """
        if state == "cancelled" and self._was_pruned(trial):
            self._close(trial, "PRUNED", None, "the same trial was pruned before")
            return
        ending = f"is {state}"
        if cell.id in self.lost:
            ending = "gave no result: its process was killed each time"
        elif state in RESUMABLE:
            ending = f"was {state} more often than the site allows"
        elif state == "failed":
            ending = f"failed; `orch logs {cell.id}` shows why"
        if state == "cancelled" and (last := read_state(self.folder.cell(cell)).exit):
            ending = last.message
        why = f"cell {cell.slug} ({cell.id}) {ending}"
        self._stop_cells(trial, f"stopped with its trial: {why}")
        self._fail(trial, why)

    def _was_pruned(self, trial: OpenTrial) -> bool:
        """Return True if an earlier trial of the same cells was pruned, which cancelled them."""
        cells = [cell.id for cell in trial.cells]
        return any(
            frozen.state.name == "PRUNED" and frozen.user_attrs.get("cells") == cells
            for frozen in self.studies[trial.search.name].get_trials(deepcopy=False)
        )

    def _fail(self, trial: OpenTrial, why: str) -> None:
        """End a trial without a result. The sampler leaves it out."""
        trial.optuna_trial.set_user_attr("why", why)
        self._close(trial, "FAIL", None, why)

    def _close(self, trial: OpenTrial, state: str, value: float | None, why: str) -> None:
        """Report the end of a trial to Optuna and forget the trial. state: a name of TrialState."""
        from optuna.trial import TrialState

        self.studies[trial.search.name].tell(trial.number, value, TrialState[state])
        del self.open[trial.search.name, trial.number]
        line = f"{trial}: {state.lower()}" + ("" if value is None else f" {value:.4g}")
        self.tell(f"{line} ({why})" if why else line)


class _Confirmation:
    """The training of the chosen values of one search, on seeds that were not used for the
    choice."""

    TRIAL_NUMBER = -1
    """Trial number of these cells in cells.jsonl."""

    def __init__(
        self, search: Search, journal: SearchJournal, scorer: TrialScorer, rules: DriverRules
    ) -> None:
        self.search, self.journal, self.scorer, self.rules = search, journal, scorer, rules
        self.done = not search.block.confirm_seeds
        self._cells: list[Cell] | None = None

    def tick(self, study: Any, lost: set[str]) -> list[Cell]:
        """Return the cells to train. Call it only if no trial of the search is open."""
        folder = self.search.experiment.folder
        if self._cells is None:
            chosen = outcome(self.search, study).chosen
            self._cells = [] if chosen is None else confirmation_cells(self.search, chosen)
            for cell in self._cells:
                self.journal.note_cell(cell.id, self.search.name, self.TRIAL_NUMBER)
        states = [(cell, read_state(folder.cell(cell))) for cell in self._cells]
        decisions = {
            cell.id: self.rules.decide(folder.cell(cell), state)
            for cell, state in states
            if cell.id not in lost
        }
        if {"train", "wait"} & set(decisions.values()):
            return [cell for cell, _ in states if decisions.get(cell.id) == "train"]
        ended = [cell for cell, state in states if state.state == "succeeded"]
        if ended and self.search.block.is_scored:
            records = collect(ended, folder)
            self.scorer.request(records)
            self.done = self.scorer.is_done(records)
        else:
            self.done = True
        return []


# ------------------------------------------------------------------ pruning


def _pruner(search: Search) -> Any:
    """Return Optuna's pruner for the cells of a search."""
    cell = search.ends()[0]
    steps = cell.settings.num_train_steps
    return pruner(search.block, steps, cell.cadence.evaluate_every_steps or max(1, steps // 10))


def intermediate_values(block: TuneBlock, records: Sequence[Record]) -> dict[int, float]:
    """Return train step -> mean over the seeds, at the steps that all of them have reached.

    records: of a trial's cells. Empty without a pruner, and until each seed has begun.
    """
    metric = block.pruned_by
    if not metric or len(records) < len(block.seeds):
        return {}
    columns = [
        {
            point.step: point.values[metric]
            for point in record.metrics
            if point.step > 0 and math.isfinite(point.values.get(metric, math.nan))
        }
        for record in records
    ]
    reached = set.intersection(*map(set, columns))
    return {step: mean([column[step] for column in columns]) for step in reached}


# ------------------------------------------------------------------ the grid's results


def add_grid_results(search: Search, study: Any) -> int:
    """Add the finished betas of the grid that lie in the range, each once.

    A β needs every seed of a trial. Return the number that was added. Train and evaluate nothing.
    """
    import optuna

    added = 0
    known = [trial.user_attrs.get("cells") for trial in study.get_trials(deepcopy=False)]
    for beta, cells in _grid_betas(search):
        ids = [cell.id for cell in cells]
        if ids in known:
            continue
        folder = search.experiment.folder
        scores = [score for cell in cells for score in read_scores(folder.cell(cell))]
        records = collect(cells, folder)
        seeds, why = objective_values(search.block, records, scores)
        if why:
            continue
        study.add_trial(
            optuna.trial.create_trial(
                params={FIELD: beta},
                distributions=distributions(search.block),
                value=mean(seeds.values()),
                intermediate_values=intermediate_values(search.block, records),
                user_attrs={"reused": True, "cells": ids, "seeds": seeds},
            )
        )
        added += 1
    return added


def _grid_betas(search: Search) -> Iterator[tuple[float, list[Cell]]]:
    """Yield each β of the grid in the search's range whose cells have all succeeded."""
    experiment, block = search.experiment, search.block
    grid = {cell.id: cell for cell in experiment.cells}
    betas = {(cell.declared or cell.settings).kl.beta for cell in experiment.cells}
    # Rounding would make another cell of the grid's.
    for beta in sorted(b for b in betas if b > 0 and block.value(b) == b):
        ids = [cell.id for cell in search.cells(beta, block.seeds)]
        cells = [grid[id_] for id_ in ids if id_ in grid]
        if len(cells) == len(ids) and all(
            read_state(experiment.folder.cell(cell)).state == "succeeded" for cell in cells
        ):
            yield beta, cells
