"""The controller of searches: asks Optuna for trials, and reports results from run directories.

`Controller.tick` never waits: it reads the state of every open trial, reports the ended ones,
prunes, asks for new ones, and returns the cells that should be trained now. A driver trains them:
`local` with workers on this machine, `slurm` with jobs. Several controllers may drive one journal.
If one dies, another takes over its trials: the journal has them, and their cells are on disk.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from orchestrator.errors import SpecError
from orchestrator.evaluate import read_scores
from orchestrator.records import Cell, Record, Score
from orchestrator.rundir import RESUMABLE, CellDir, CellState, RunFolder
from orchestrator.runs import cost, operations
from orchestrator.runs.collect import collect
from orchestrator.runs.state import read_state
from orchestrator.search.block import distributions, sampler
from orchestrator.search.design import OpenTrial, Search, optuna_trial
from orchestrator.search.journal import SearchJournal
from orchestrator.search.pruning import intermediate_values, pruner, why_collapsed, why_pruned
from orchestrator.search.results import (
    confirmation_cells,
    hours,
    hours_of_trial,
    is_own,
    objective_values,
    outcome,
)

if TYPE_CHECKING:
    import optuna

ADOPT_SECONDS = 5.0
"""Seconds between two searches for trials whose controller is dead."""

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


class Controller:
    """One process that drives the searches of a journal. Other processes may drive them too."""

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
        self.block = searches[0].tune.block
        self.folder: RunFolder = searches[0].experiment.folder
        self.grid = {cell.id: cell for cell in searches[0].experiment.cells}
        self.studies: dict[str, optuna.Study] = {
            search.name: journal.study(search, pruner=pruner(search)) for search in searches
        }
        self.open: dict[tuple[str, int], OpenTrial] = {}
        """(search, number) -> the trials that this controller owns."""
        self.lost: set[str] = set()
        """Cells whose process was killed too often."""
        self._handed: set[str] = set()
        self._exhausted: set[str] = set()
        """Searches that have used up their budget."""
        self._adopted_at = -math.inf
        self._confirmations = [_Confirmation(s, journal, scorer, rules) for s in searches]

    @property
    def done(self) -> bool:
        """Return True once this controller has nothing left to do."""
        busy = self.open or self._next_search()
        return not busy and all(c.done or self._has_open(c.search) for c in self._confirmations)

    def tick(self) -> list[Cell]:
        """Read the state of everything once. Return the cells to train."""
        self.journal.heartbeat()
        self._adopt()
        wanted: dict[str, Cell] = {}
        for trial in list(self.open.values()):
            wanted.update((cell.id, cell) for cell in self._follow(trial))
        while len(self.open) < self.block.parallel and (search := self._next_search()):
            new_trial = self._ask(search)
            if new_trial is not None:
                wanted.update((cell.id, cell) for cell in self._follow(new_trial))
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
            if search.tune.block.reuse:
                added = add_grid_results(search, self.journal, self.studies[search.name])
                if added:
                    self.tell(f"{search.name}: {added} trials taken from the grid's results")

    # ------------------------------------------------------------------ asking

    def _next_search(self) -> Search | None:
        """Return the search with the fewest trials, of those that may continue."""
        counts = {search.name: self._count(search.name) for search in self.searches}
        unfinished = [
            s
            for s in self.searches
            if s.name not in self._exhausted and counts[s.name] < self.block.trials
        ]
        return min(unfinished, key=lambda search: counts[search.name], default=None)

    def _count(self, name: str) -> int:
        """Return the number of trials that the search started itself, without reused ones."""
        return sum(map(is_own, self.studies[name].get_trials(deepcopy=False)))

    def _has_open(self, search: Search) -> bool:
        """Return True while a trial of the search is open, of this or another controller."""
        trials = self.studies[search.name].get_trials(deepcopy=False)
        return any(not trial.state.is_finished() for trial in trials)

    def _is_over(self, search: Search) -> bool:
        """Return True once no trial of the search is open and none may be started."""
        enough = search.name in self._exhausted or self._count(search.name) >= self.block.trials
        return enough and not self._has_open(search)

    def _ask(self, search: Search) -> OpenTrial | None:
        """Return a new trial, or None if others were quicker or the budget is used up.

        One lock covers counting and creating. Without it two controllers could both create the last
        trial.
        """
        study = self.studies[search.name]
        with self.journal.locked():
            if self._count(search.name) >= self.block.trials or self._is_exhausted(search):
                return None
            study.sampler = sampler(self.block, len(study.get_trials(deepcopy=False)))
            trial = study.ask(distributions(search.space))
            trial.set_user_attr("controller", self.journal.controller_id)
        return self._begin(search, trial.number, trial.params)

    def _begin(self, search: Search, number: int, params: Mapping[str, Any]) -> OpenTrial | None:
        """Return the trial of this number, opened by this controller.

        Fail the trial and return None if a rule between fields refuses its parameters.
        """
        study = self.studies[search.name]
        handle = optuna_trial(study, number)
        try:
            cells = search.cells(params, search.tune.seeds)
        except SpecError as error:
            # `design` has checked the ends of each range. A rule between fields can still refuse a
            # value between them.
            self._fail(OpenTrial(search, number, handle, {}, []), error.faults[0].message)
            return None
        # A cell of the spec's grid is that cell, with the grid's axes.
        cells = [self.grid.get(cell.id, cell) for cell in cells]
        reported = set(study.get_trials(deepcopy=False)[number].intermediate_values)
        trial = OpenTrial(search, number, handle, dict(params), cells, reported=reported)
        handle.set_user_attr("cells", [cell.id for cell in cells])
        for cell in cells:
            if cell.id not in self.grid:
                self.journal.note_cell(cell.id, search.name, number)
        self.open[search.name, number] = trial
        self.tell(f"{trial}: asked")
        return trial

    def _adopt(self) -> None:
        """Take over trials whose controller is dead."""
        if time.monotonic() < self._adopted_at + ADOPT_SECONDS:
            return
        self._adopted_at = time.monotonic()
        for search in self.searches:
            study = self.studies[search.name]
            for frozen in study.get_trials(deepcopy=False):
                if (search.name, frozen.number) in self.open or not self._is_orphan(frozen):
                    continue
                with self.journal.locked():
                    # Check again, under the lock: another controller may have adopted the trial,
                    # or may have created it a moment ago and not yet written its own id to it.
                    current = study.get_trials(deepcopy=False)[frozen.number]
                    if not self._is_orphan(current):
                        continue
                    handle = optuna_trial(study, current.number)
                    handle.set_user_attr("controller", self.journal.controller_id)
                if set(current.params) >= {dimension.field for dimension in search.space}:
                    self._begin(search, current.number, current.params)
                else:
                    self._fail_without_params(search, current.number)

    def _is_orphan(self, frozen: Any) -> bool:
        """Return True for an open trial whose controller is dead."""
        owner = frozen.user_attrs.get("controller")
        return not frozen.state.is_finished() and not self.journal.is_alive(owner)

    def _is_exhausted(self, search: Search) -> bool:
        """Return True if another trial is expected to go beyond the budget. Then start no more
        trials of the search, and report why."""
        trials = self.studies[search.name].get_trials(deepcopy=False)
        fault = budget_fault(search, trials)
        if fault:
            self._exhausted.add(search.name)
            self.tell(f"{search.name}: {fault}")
        return bool(fault)

    # ------------------------------------------------------------------ following

    def _follow(self, trial: OpenTrial) -> Iterator[Cell]:
        """Read the state of a trial once. If it has ended, report it to Optuna; else yield its
        cells to train.
        """
        states = [(cell, read_state(self.folder.cell(cell))) for cell in trial.released()]
        decisions = {cell.id: self._decide(cell, state) for cell, state in states}
        for cell, state in states:
            if decisions[cell.id] == "over" and state.state != "succeeded":
                self._end_without_result(trial, cell, state.state)
                return
        ended = [cell for cell, state in states if state.state == "succeeded"]
        records = self._records(trial, ended)
        if self._prune_if_hopeless(trial, records):
            return
        if len(ended) == len(trial.cells):
            self._complete(trial, records)
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

    def _prune_if_hopeless(self, trial: OpenTrial, records: Sequence[Record]) -> bool:
        """Return True after pruning a trial that has collapsed or is behind the trials before it.

        Its other cells are stopped.
        """
        why = why_collapsed(trial, records, self.folder) if self.block.stop_on_collapse else ""
        if not why and trial.search.tune.prune_on is not None and self._can_prune(trial, records):
            why = why_pruned(trial, records, self.scorer.scores(records), self.folder)
        if not why:
            return False
        trial.set_attribute("why", why)
        self._stop_cells(trial, f"given up by the search: {why}")
        self._close(trial, "PRUNED", None, why)
        return True

    def _can_prune(self, trial: OpenTrial, records: Sequence[Record]) -> bool:
        """Return False while Wilcoxon's pruner, which compares items, waits for scores."""
        if self.block.pruner != "wilcoxon" or not trial.search.objectives[0].is_scored:
            return True
        if self.scorer.is_done(records):
            return True
        self.scorer.request(records)
        return False

    def _stop_cells(self, trial: OpenTrial, why: str) -> None:
        """Cancel the cells of a trial that still train.

        Do not cancel cells of the spec's grid or of another open trial.
        """
        others = {
            cell.id for other in self.open.values() if other is not trial for cell in other.cells
        }
        unfinished = [
            cell
            for cell in trial.released()
            if cell.id not in self.grid
            and cell.id not in others
            and self._decide(cell, read_state(self.folder.cell(cell))) != "over"
        ]
        name = self.journal.path.name
        operations.cancel(unfinished, self.folder, f"{why} (orch tune, {name}, {trial})")

    def _complete(self, trial: OpenTrial, records: Sequence[Record]) -> None:
        """Report a trial to Optuna once all its cells have succeeded and have scores."""
        if any(objective.is_scored for objective in trial.search.objectives):
            fault = self.scorer.fault(records)
            if fault:
                self._fail(trial, fault)
                return
            if not self.scorer.is_done(records):
                self.scorer.request(records)
                return
        values, seeds, why = objective_values(trial.search, records, self.scorer.scores(records))
        trial.set_attribute("seeds", seeds)
        if why:
            self._fail(trial, why)
        else:
            self._close(trial, "COMPLETE", values, "")

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
        """End a trial without a result, as the block declares."""
        trial.set_attribute("why", why)
        values = self.block.if_failed
        if values == "fail":
            self._close(trial, "FAIL", None, why)
        else:
            self._close(trial, "COMPLETE", list(values), why)

    def _fail_without_params(self, search: Search, number: int) -> None:
        """Fail a trial whose controller died before it had parameters, so that the sampler proposes
        a new one.
        """
        from optuna.trial import TrialState

        study = self.studies[search.name]
        # Results leave such a trial out. The attribute keeps its old name, because journals on disk
        # have it.
        optuna_trial(study, number).set_user_attr("unborn", True)
        study.tell(number, state=TrialState.FAIL, skip_if_finished=True)

    def _close(
        self, trial: OpenTrial, state: str, values: Sequence[float] | None, why: str
    ) -> None:
        """Report the end of a trial to Optuna and forget the trial. state: a name of TrialState."""
        from optuna.trial import TrialState

        # Before `tell`: Optuna takes no attribute for a trial that has ended.
        trial.set_attribute("spent", hours(trial.cells, self.folder))
        study = self.studies[trial.search.name]
        # Another controller may have taken this one for dead and ended the trial.
        study.tell(trial.number, values, TrialState[state], skip_if_finished=True)
        self.open.pop((trial.search.name, trial.number), None)
        numbers = [f"{value:.4g}" for value in values or ()]
        line = f"{trial}: {' '.join([state.lower(), *numbers])}"
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
        self.done = not search.tune.block.confirm_seeds
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
        if ended and any(objective.is_scored for objective in self.search.objectives):
            records = collect(ended, folder)
            self.scorer.request(records)
            self.done = self.scorer.is_done(records)
        else:
            self.done = True
        return []


# ------------------------------------------------------------------ the grid's results


def add_grid_results(search: Search, journal: SearchJournal, study: Any) -> int:
    """Add the finished configurations of the grid that lie in the space, each once.

    A configuration needs every seed of a trial. Return the number that was added. Train and
    evaluate nothing.
    """
    import optuna

    added = 0
    with journal.locked():
        known = [trial.user_attrs.get("cells") for trial in study.get_trials(deepcopy=False)]
        for params, cells in _grid_configurations(search):
            ids = [cell.id for cell in cells]
            if ids in known:
                continue
            folder = search.experiment.folder
            scores = [score for cell in cells for score in read_scores(folder.cell(cell))]
            records = collect(cells, folder)
            values, seeds, why = objective_values(search, records, scores)
            if why:
                continue
            known.append(ids)
            study.add_trial(
                optuna.trial.create_trial(
                    params=params,
                    distributions=distributions(search.space),
                    values=values,
                    intermediate_values=intermediate_values(search, records, scores, folder),
                    user_attrs={"reused": True, "cells": ids, "seeds": seeds},
                )
            )
            added += 1
    return added


def _grid_configurations(search: Search) -> Iterator[tuple[dict[str, Any], list[Cell]]]:
    """Yield parameters and cells of each configuration of the grid whose cells have all
    succeeded."""
    experiment = search.experiment
    grid = {cell.id: cell for cell in experiment.cells}
    tried: list[dict[str, Any]] = []
    for cell in experiment.cells:
        params = _params_of(search, cell)
        if params is None or params in tried:
            continue
        tried.append(params)
        ids = [own.id for own in search.cells(params, search.tune.seeds)]
        cells = [grid[id_] for id_ in ids if id_ in grid]
        if len(cells) == len(ids) and all(
            read_state(experiment.folder.cell(own)).state == "succeeded" for own in cells
        ):
            yield params, cells


def _params_of(search: Search, cell: Cell) -> dict[str, Any] | None:
    """Return the parameters of a cell in the space; None if it lies outside.

    None also for a value that rounding would change: it would give another cell than the grid's.
    """
    settings = cell.declared or cell.settings
    params = {}
    for dimension in search.space:
        try:
            params[dimension.field] = dimension.param(attrgetter(dimension.field)(settings))
        except (AttributeError, LookupError):
            return None
    return params


# ------------------------------------------------------------------ the budget


def budget_fault(search: Search, trials: Iterable[Any]) -> str:
    """Return a sentence if one more trial is expected to go beyond the budget, else nothing.

    Each running trial and the next one are expected to cost the mean of the ended ones. Before any
    has ended, they are expected to cost what the cost model estimates.
    """
    block = search.tune.block
    if block.max_gpu_hours is None and block.max_cpu_hours is None:
        return ""
    own = [trial for trial in trials if is_own(trial)]
    ended = [hours_of_trial(search, trial) for trial in own if "spent" in trial.user_attrs]
    coming = len(own) - len(ended) + 1
    modelled = _modelled_hours(search) if not ended else (0.0, 0.0)
    for i, (limit, unit) in enumerate(
        ((block.max_gpu_hours, "GPU-hours"), (block.max_cpu_hours, "CPU-hours"))
    ):
        spent = sum(trial[i] for trial in ended)
        expected = spent + coming * (spent / len(ended) if ended else modelled[i])
        if limit is not None and expected > limit:
            return (
                f"another trial would bring the search to {expected:.3g} {unit}, of {limit:g} it "
                f"may spend, so it ends with {len(own)} trials"
            )
    return ""


def _modelled_hours(search: Search) -> tuple[float, float]:
    """Return the GPU-hours and CPU-hours that the cost model expects of a trial."""
    priced = [cost.cost(cell) for cell in search.cells(search.corners()[0], search.tune.seeds)]
    gpu_hours = sum(p.gpu_hours for p in priced if p.basis != "unknown")
    return gpu_hours, sum(p.cpu_seconds for p in priced) / 3600
