"""One trial: its cells, what they measured, and what it cost."""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from orchestrator.compare.runs import measure
from orchestrator.rundir import RunFolder
from orchestrator.tune.design import Search
from orchestrator.types import Cell, Record, Score


@dataclass
class OpenTrial:
    """A trial that has not been told yet."""

    search: Search
    number: int
    handle: Any
    """Optuna's Trial."""
    params: Mapping[str, Any]
    cells: list[Cell]
    """One a seed."""
    records: dict[str, Record] = field(default_factory=dict)
    """Of the cells that have ended."""
    reported: set[int] = field(default_factory=set)
    """Steps (or items) whose values Optuna has."""
    seen: dict[str, Record] = field(default_factory=dict)
    """Of the cells that train, as last read."""
    judged: int = 0
    """Cells that Wilcoxon's pruner has seen."""
    looked: float = -math.inf
    """When its running cells were last read, on the monotonic clock."""

    def staged(self) -> list[Cell]:
        """The cells that may train now: all, or with Wilcoxon's pruner one seed after another."""
        if self.search.tune.block.pruner != "wilcoxon":
            return self.cells
        return self.cells[: self.judged + 1]

    def attr(self, name: str, value: Any) -> None:
        """Keeps a value with the trial, unless another controller has ended it."""
        from optuna.exceptions import UpdateFinishedTrialError

        with suppress(UpdateFinishedTrialError):
            self.handle.set_user_attr(name, value)

    def spent(self, folder: RunFolder) -> list[float]:
        """GPU-hours and CPU-hours of all attempts at its cells."""
        return spent(self.cells, folder)

    def __str__(self) -> str:
        told = ", ".join(
            f"{each.field} = {_shown(each.value(self.params[each.field]))}"
            for each in self.search.space if each.field in self.params
        )  # fmt: skip
        return f"{self.search.name} trial {self.number} ({told})"


def spent(cells: Iterable[Cell], folder: RunFolder) -> list[float]:
    """GPU-hours and CPU-hours of all attempts that have ended."""
    exits = [
        ended
        for cell in cells
        for attempt in folder.cell(cell).attempts()
        if (ended := attempt.read_exit()) is not None
    ]
    return [sum(e.gpu_hours for e in exits), sum(e.cpu_seconds for e in exits) / 3600]


def spent_on(search: Search, told: Any) -> list[float]:
    """The same of one of Optuna's trials that has ended. A pruned trial's jobs write down what
    they used after it was told, so that is read again."""
    noted: list[float] = told.user_attrs.get("spent", [0.0, 0.0])
    if told.state.name != "PRUNED" or not told.user_attrs.get("cells"):
        return noted
    cells = search.cells(told.params, search.tune.seeds)
    return [max(pair) for pair in zip(noted, spent(cells, search.experiment.folder), strict=True)]


def handle_of(study: Any, number: int) -> Any:
    """Optuna's Trial for a number: what intermediate values and attributes are told to."""
    from optuna.trial import Trial

    frozen = study.get_trials(deepcopy=False)[number]
    return Trial(study, frozen._trial_id)  # noqa: SLF001  Optuna tells the id no other way


def counts(trial: Any) -> bool:
    """Whether one of Optuna's trials is one of the search's own: not reused from the grid, nor
    cut short before it had parameters."""
    return not (trial.user_attrs.get("unborn") or trial.user_attrs.get("reused"))


def measured_values(
    search: Search, records: Sequence[Record], scores: Iterable[Score]
) -> tuple[list[float], dict[str, list[float]], str]:
    """The mean over seeds of each objective, the values of each seed, and why there are none."""
    runs = measure(records, scores)
    seeds: dict[str, list[float]] = {}
    for run in runs:
        own = [each.value(run.finals) for each in search.objectives]
        for each, value in zip(search.objectives, own, strict=True):
            if not math.isfinite(value):
                missing = each.missing(run.finals)
                what = f"has no final {missing[0]}" if missing else "is not finite"
                return [], {}, f"{each.text} of {run.record.cell.slug} {what}"
        seeds[str(run.seed)] = own
    means = [math.fsum(column) / len(runs) for column in zip(*seeds.values(), strict=True)]
    return means, seeds, ""


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
