"""Results that the spec's grid has already given, as the first trials of a search."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from orchestrator.errors import SpecError
from orchestrator.evaluate import read_scores
from orchestrator.records import ENDED, Cell, Record
from orchestrator.rundir import RESUMABLE, CellDir, CellState, RunFolder
from orchestrator.runs import cost, operations
from orchestrator.runs.collect import collect
from orchestrator.runs.experiment import Experiment
from orchestrator.runs.state import read_state
from orchestrator.search import pruning
from orchestrator.search.block import distributions
from orchestrator.search.design import (
    OpenTrial,
    Search,
    counts,
    handle_of,
    measured_values,
    spent_on,
)
from orchestrator.search.journal import SearchJournal
from orchestrator.search.pruning import intermediate
from orchestrator.search.results import confirm_cells
from orchestrator.search.results import found as outcome
from orchestrator.search.samplers import pruner, sampler
from orchestrator.search.scorer import TrialScorer

if TYPE_CHECKING:
    import optuna


def reuse(search: Search, journal: SearchJournal, study: Any) -> int:
    """Adds the grid's finished configurations that lie in the space and have every seed of a
    trial; each once. Tells how many were added. Trains and evaluates nothing."""
    import optuna

    added = 0
    with journal.locked():
        known = [trial.user_attrs.get("cells") for trial in study.get_trials(deepcopy=False)]
        for params, cells in _configurations(search):
            ids = [cell.id for cell in cells]
            if ids in known:
                continue
            folder = search.experiment.folder
            scores = [score for cell in cells for score in read_scores(folder.cell(cell))]
            records = collect(cells, folder)
            values, seeds, why = measured_values(search, records, scores)
            if why:
                continue
            known.append(ids)
            study.add_trial(
                optuna.trial.create_trial(
                    params=params,
                    distributions=distributions(search.space),
                    values=values,
                    intermediate_values=intermediate(search, records, scores, folder),
                    user_attrs={"reused": True, "cells": ids, "seeds": seeds},
                )
            )
            added += 1
    return added


def _configurations(search: Search) -> Iterator[tuple[dict[str, Any], list[Cell]]]:
    """Parameters and cells, of the grid, all of whose cells have succeeded."""
    experiment = search.experiment
    grid = {cell.id: cell for cell in experiment.cells}
    tried: list[dict[str, Any]] = []
    for cell in experiment.cells:
        params = _params(search, cell)
        if params is None or params in tried:
            continue
        tried.append(params)
        cells = [grid.get(c.id) for c in search.cells(params, search.tune.seeds)]
        if all(c is not None and _has_succeeded(c, experiment) for c in cells):
            yield params, [c for c in cells if c is not None]


def _params(search: Search, cell: Cell) -> dict[str, Any] | None:
    """Where a cell lies in the space; None if outside, or if rounding would move it."""
    settings = cell.declared or cell.settings
    params = {}
    for each in search.space:
        try:
            value = attrgetter(each.field)(settings)
            params[each.field] = each.param(value)
        except (AttributeError, LookupError):
            return None
    return params


def _has_succeeded(cell: Cell, experiment: Experiment) -> bool:
    return read_state(experiment.folder.cell(cell)).state == "succeeded"


# What a search has spent, and whether it can afford another trial.


class Spent(NamedTuple):
    gpu_hours: float = 0.0
    cpu_hours: float = 0.0

    def plus(self, other: "Spent") -> "Spent":
        return Spent(self.gpu_hours + other.gpu_hours, self.cpu_hours + other.cpu_hours)


def overdrawn(search: Search, trials: Iterable[Any]) -> str:
    """A sentence if one more trial is expected to go beyond the budget, else nothing.

    A trial that runs, and the next one, are expected to cost the mean of those that have ended;
    before there are any, what the cost model says.
    """
    block = search.tune.block
    if block.max_gpu_hours is None and block.max_cpu_hours is None:
        return ""
    own = [trial for trial in trials if counts(trial)]
    ended = [Spent(*spent_on(search, t)) for t in own if "spent" in t.user_attrs]
    total = Spent()
    for one in ended:
        total = total.plus(one)
    each = Spent(*(part / len(ended) for part in total)) if ended else _modelled(search)
    coming = len(own) - len(ended) + 1
    expected = total.plus(Spent(each.gpu_hours * coming, each.cpu_hours * coming))
    for used, limit, unit in (
        (expected.gpu_hours, block.max_gpu_hours, "GPU-hours"),
        (expected.cpu_hours, block.max_cpu_hours, "CPU-hours"),
    ):
        if used > (limit or math.inf):
            return (
                f"another trial would bring the search to {used:.3g} {unit}, of {limit:g} it may "
                f"spend, so it ends with {len(own)} trials"
            )
    return ""


def _modelled(search: Search) -> Spent:
    priced = [cost.cost(cell) for cell in search.cells(search.corners()[0], search.tune.seeds)]
    hours = sum(p.gpu_hours for p in priced if p.basis != "unknown")
    return Spent(hours, sum(p.cpu_seconds for p in priced) / 3600)


# What a controller makes of a cell's state: that depends on who launches the cell.


TrainingDecision = Literal["train", "wait", "over"]
"""train: the launcher is to be handed it; wait: it is at work; over: nothing more comes of it."""


class Launching(NamedTuple):
    """One launcher's way with cells."""

    verdict: Callable[[CellDir, CellState], TrainingDecision]
    once: bool
    """Whether it is told of a cell once, and then sees to it until its end."""


def _here(_: CellDir, seen: CellState) -> TrainingDecision:
    # one that runs already may be another orch's: this machine's launcher watches that too
    if seen.state in RESUMABLE or seen.state == "running":
        return "train"
    return "over" if seen.state in ENDED or seen.state == "unknown" else "wait"


HERE = Launching(_here, once=True)


# Training what each search has chosen once more, on seeds that had no part in choosing it.


CONFIRMING = -1
"""The trial's number in cells.jsonl."""


class Confirmation:
    """One search's, from the end of its last trial on."""

    def __init__(
        self, search: Search, journal: SearchJournal, scorer: TrialScorer, launching: Launching
    ) -> None:
        self.search, self.journal, self.scorer = search, journal, scorer
        self.launching = launching
        self.done = not search.tune.block.confirm_seeds
        self._cells: list[Cell] | None = None

    def turn(self, study: Any, lost: set[str]) -> list[Cell]:
        """Cells that want training. To be asked once no trial of the search is open."""
        folder = self.search.experiment.folder
        if self._cells is None:
            chosen = outcome(self.search, study).chosen
            self._cells = [] if chosen is None else confirm_cells(self.search, chosen)
            for cell in self._cells:
                self.journal.note_cell(cell.id, self.search.name, CONFIRMING)
        looks = [(cell, read_state(folder.cell(cell))) for cell in self._cells]
        words = {
            cell.id: self.launching.verdict(folder.cell(cell), seen)
            for cell, seen in looks
            if cell.id not in lost
        }
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


# Asks Optuna for trials and tells it what became of them, from what the run directories say.
#
# `turn` never waits: it looks at every open trial, tells those that have ended, prunes, asks for
# new ones, and returns the cells that somebody should now train. Who trains them, and where, is the
# launcher's business. A controller that dies is replaced by any other: its trials are in the
# journal, their cells on disk.


_ADOPT_SECONDS = 5.0

Tell = Callable[[str], None]


class Controller:
    """One process that drives the searches of a journal; others may drive them too."""

    def __init__(
        self,
        searches: Sequence[Search],
        journal: SearchJournal,
        scorer: TrialScorer,
        tell: Tell = lambda _: None,
        launching: Launching = HERE,
    ) -> None:
        self.searches, self.journal, self.scorer, self.tell = searches, journal, scorer, tell
        self.launching = launching
        self.block = searches[0].tune.block
        self.folder: RunFolder = searches[0].experiment.folder
        self.grid = {cell.id: cell for cell in searches[0].experiment.cells}
        self.studies: dict[str, optuna.Study] = {
            search.name: journal.study(search, pruner=pruner(search)) for search in searches
        }
        self.open: dict[tuple[str, int], OpenTrial] = {}
        self.lost: set[str] = set()
        """Cells whose process was killed too often."""
        self._handed: set[str] = set()
        self._dry: set[str] = set()
        """Searches whose budget is used up."""
        self._adopted = -math.inf
        self._confirmations = [Confirmation(s, journal, scorer, launching) for s in searches]

    @property
    def done(self) -> bool:
        """Whether nothing is left for this controller."""
        busy = self.open or self._next()
        return not busy and all(c.done or self._is_open(c.search) for c in self._confirmations)

    def turn(self) -> list[Cell]:
        """One look at everything. Cells to be trained."""
        self.journal.beat()
        self._adopt()
        wanted: dict[str, Cell] = {}
        for trial in list(self.open.values()):
            wanted.update((cell.id, cell) for cell in self._follow(trial))
        while len(self.open) < self.block.parallel and (search := self._next()):
            asked = self._ask(search)
            if asked is not None:
                wanted.update((cell.id, cell) for cell in self._follow(asked))
        for confirmation in self._confirmations:
            if not confirmation.done and self._is_over(confirmation.search):
                study = self.studies[confirmation.search.name]
                wanted.update((c.id, c) for c in confirmation.turn(study, self.lost))
        if not self.launching.once:
            return list(wanted.values())
        fresh = [cell for cell in wanted.values() if cell.id not in self._handed]
        self._handed.update(cell.id for cell in fresh)
        return fresh

    def lose(self, cell: Cell) -> None:
        """Notes a cell that the launcher has given up: its process was killed each time."""
        self.lost.add(cell.id)

    # ------------------------------------------------------------------ asking

    def _next(self) -> Search | None:
        """The search that is furthest behind, of those that may go on."""
        counts = {search.name: self._count(search.name) for search in self.searches}
        open_to = [
            s
            for s in self.searches
            if s.name not in self._dry and counts[s.name] < self.block.trials
        ]
        return min(open_to, key=lambda search: counts[search.name], default=None)

    def _count(self, name: str) -> int:
        """Trials of the search's own."""
        return sum(map(counts, self.studies[name].get_trials(deepcopy=False)))

    def _is_open(self, search: Search) -> bool:
        """Whether a trial of the search is open, here or with another controller."""
        trials = self.studies[search.name].get_trials(deepcopy=False)
        return any(not trial.state.is_finished() for trial in trials)

    def _is_over(self, search: Search) -> bool:
        enough = search.name in self._dry or self._count(search.name) >= self.block.trials
        return enough and not self._is_open(search)

    def _ask(self, search: Search) -> OpenTrial | None:
        """A new trial; None if others were quicker or the budget is used up."""
        study = self.studies[search.name]
        with self.journal.locked():
            if self._count(search.name) >= self.block.trials or self._is_dry(search):
                return None
            study.sampler = sampler(self.block, len(study.get_trials(deepcopy=False)))
            asked = study.ask(distributions(search.space))
            asked.set_user_attr("controller", self.journal.me)
        return self._opened(search, asked.number, asked.params)

    def _opened(self, search: Search, number: int, params: Mapping[str, Any]) -> OpenTrial | None:
        handle = handle_of(self.studies[search.name], number)
        try:
            cells = search.cells(params, search.tune.seeds)
        except SpecError as error:  # a value between the ends that a rule between fields refuses
            self._fail(OpenTrial(search, number, handle, {}, []), error.faults[0].message)
            return None
        cells = [self.grid.get(cell.id, cell) for cell in cells]
        known = self.studies[search.name].get_trials(deepcopy=False)[number].intermediate_values
        trial = OpenTrial(search, number, handle, dict(params), cells, reported=set(known))
        handle.set_user_attr("cells", [cell.id for cell in cells])
        for cell in cells:
            if cell.id not in self.grid:
                self.journal.note_cell(cell.id, search.name, number)
        self.open[search.name, number] = trial
        self.tell(f"{trial}: asked")
        return trial

    def _adopt(self) -> None:
        """Takes over trials whose controller is gone."""
        if time.monotonic() < self._adopted + _ADOPT_SECONDS:
            return
        self._adopted = time.monotonic()
        for search in self.searches:
            for found in self.studies[search.name].get_trials(deepcopy=False):
                key = search.name, found.number
                owner = found.user_attrs.get("controller")
                if found.state.is_finished() or key in self.open or self.journal.is_alive(owner):
                    continue
                with self.journal.locked():  # an ask of another's may be under way
                    found = self.studies[search.name].get_trials(deepcopy=False)[found.number]
                    owner = found.user_attrs.get("controller")
                    if found.state.is_finished() or self.journal.is_alive(owner):
                        continue
                    handle_of(self.studies[search.name], found.number).set_user_attr(
                        "controller", self.journal.me
                    )
                if not set(found.params) >= {each.field for each in search.space}:
                    self._fail_unborn(search, found.number)
                    continue
                self._opened(search, found.number, found.params)

    def _is_dry(self, search: Search) -> bool:
        """Whether another trial is expected to go beyond the budget."""
        told = overdrawn(search, self.studies[search.name].get_trials(deepcopy=False))
        if told:
            self._dry.add(search.name)
            self.tell(f"{search.name}: {told}")
        return bool(told)

    # ------------------------------------------------------------------ following

    def _follow(self, trial: OpenTrial) -> Iterator[Cell]:
        """One look at a trial: told if it has ended, else its cells that want training."""
        looks = [(cell, read_state(self.folder.cell(cell))) for cell in trial.staged()]
        verdicts = {cell.id: self._verdict(cell, seen) for cell, seen in looks}
        for cell, seen in looks:
            if verdicts[cell.id] == "over" and seen.state != "succeeded":
                self._end_badly(trial, cell, seen.state)
                return
        ended = [cell for cell, seen in looks if seen.state == "succeeded"]
        records = self._records(trial, ended)
        if self._is_given_up(trial, records):
            return
        if len(ended) == len(trial.cells):
            self._settle(trial, records)
            return
        yield from (cell for cell, _ in looks if verdicts[cell.id] == "train")

    def _verdict(self, cell: Cell, seen: CellState) -> TrainingDecision:
        if cell.id in self.lost:
            return "over"
        return self.launching.verdict(self.folder.cell(cell), seen)

    def _records(self, trial: OpenTrial, ended: Sequence[Cell]) -> list[Record]:
        """Records of a trial's cells that have ended, each read once."""
        for cell in ended:
            if cell.id not in trial.records:
                (trial.records[cell.id],) = collect([cell], self.folder)
        return [trial.records[cell.id] for cell in ended]

    def _is_given_up(self, trial: OpenTrial, records: Sequence[Record]) -> bool:
        """Whether the trial ends here, collapsed or pruned; its other cells are then stopped."""
        why = pruning.collapsed(trial, records, self.folder) if self.block.stop_on_collapse else ""
        if not why and trial.search.tune.prune_on is not None:
            why = pruning.pruned(trial, records, self.folder, self.scorer)
        if not why:
            return False
        trial.attr("why", why)
        self._stop_cells(trial, f"given up by the search: {why}")
        self._close(trial, "PRUNED", None, why)
        return True

    def _stop_cells(self, trial: OpenTrial, why: str) -> None:
        """Cancels what still trains, but for cells of the spec's grid or of another open trial."""
        others = {
            cell.id for other in self.open.values() if other is not trial for cell in other.cells
        }
        left = [
            cell
            for cell in trial.staged()
            if cell.id not in self.grid
            and cell.id not in others
            and self._verdict(cell, read_state(self.folder.cell(cell))) != "over"
        ]
        name = self.journal.path.name
        operations.cancel(left, self.folder, f"{why} (orch tune, {name}, {trial})")

    def _settle(self, trial: OpenTrial, records: Sequence[Record]) -> None:
        """Tells a trial all of whose cells have succeeded, once they are scored."""
        if any(each.is_scored for each in trial.search.objectives):
            fault = self.scorer.fault(records)
            if fault:
                self._fail(trial, fault)
                return
            if not self.scorer.has(records):
                self.scorer.ask(records)
                return
        scores = self.scorer.scores(records)
        values, seeds, why = measured_values(trial.search, records, scores)
        trial.attr("seeds", seeds)
        if why:
            self._fail(trial, why)
        else:
            self._close(trial, "COMPLETE", values, "")

    def _end_badly(self, trial: OpenTrial, cell: Cell, state: str) -> None:
        if state == "cancelled" and self._was_pruned(trial):
            self._close(trial, "PRUNED", None, "the same trial was pruned before")
            return
        told = f"`orch logs {cell.id}` says why" if state == "failed" else ""
        what = "its process was killed again and again" if cell.id in self.lost else state
        if state in RESUMABLE and cell.id not in self.lost:
            what = f"was {state} more often than the site allows"
        if state == "cancelled" and (last := read_state(self.folder.cell(cell)).exit):
            what = last.message
        why = f"cell {cell.slug} ({cell.id}) {what}" + (f"; {told}" if told else "")
        self._stop_cells(trial, f"stopped with its trial: {why}")
        self._fail(trial, why)

    def _was_pruned(self, trial: OpenTrial) -> bool:
        cells = [cell.id for cell in trial.cells]
        return any(
            found.state.name == "PRUNED" and found.user_attrs.get("cells") == cells
            for found in self.studies[trial.search.name].get_trials(deepcopy=False)
        )

    def _fail(self, trial: OpenTrial, why: str) -> None:
        """Ends a trial without a result, as the block declares."""
        trial.attr("why", why)
        rule = self.block.if_failed
        if rule == "fail":
            self._close(trial, "FAIL", None, why)
        else:
            self._close(trial, "COMPLETE", list(rule), why)

    def _fail_unborn(self, search: Search, number: int) -> None:
        """Ends a trial whose controller died before it had parameters; it is asked anew."""
        from optuna.trial import TrialState

        study = self.studies[search.name]
        handle_of(study, number).set_user_attr("unborn", True)
        study.tell(number, state=TrialState.FAIL, skip_if_finished=True)

    def _close(
        self, trial: OpenTrial, state: str, values: Sequence[float] | None, why: str
    ) -> None:
        from optuna.trial import TrialState

        trial.attr("spent", trial.spent(self.folder))
        study = self.studies[trial.search.name]
        study.tell(trial.number, values, TrialState[state], skip_if_finished=True)
        self.open.pop((trial.search.name, trial.number), None)
        told = " ".join(f"{value:.4g}" for value in values or ())
        self.tell(
            f"{trial}: {' '.join(filter(None, (state.lower(), told)))}{f' ({why})' if why else ''}"
        )
