"""Turn a `tune` block into searches, and proposed values into cells; hold the open trials.

The metrics of these cells are known before any cell is trained, so a whole block is checked without
running anything.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator import plugins
from orchestrator.errors import Fault, OrchError, SelectionError, SpecError, did_you_mean
from orchestrator.evaluate.survey import divergence_tasks, tasks_of
from orchestrator.identity import flatten, identity
from orchestrator.library.protocol import EmbeddedTrainer
from orchestrator.metrics.names import METRICS
from orchestrator.records import Cell, EvaluationSpec, Record, Study
from orchestrator.runs.experiment import Experiment, at_scale
from orchestrator.search.block import CheckedBlock, Dimension, SearchObjective, read_block
from orchestrator.spec.expand import expand
from orchestrator.spec.fields import text_of
from orchestrator.spec.select import any_matches

STUDY = "tune"
"""Prefix of the studies of trials, in tags and names."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")


def design(experiment: Experiment, flags: Mapping[str, Any] | None = None) -> list["Search"]:
    """Return the searches of an experiment's `tune` block. Raise SpecError with every fault."""
    checked = read_block(experiment.spec, flags)
    block = checked.block
    searches = [
        Search(
            _name(row),
            checked,
            experiment,
            {**block.fixed, **dict(zip(block.each, row, strict=True))},
        )
        for row in product(*block.each.values())
    ]
    faults: dict[str, Fault] = {}
    for search in searches:
        for fault in search.faults():
            faults.setdefault(fault.message, fault)
    names = [search.name for search in searches]
    for i, name in enumerate(names):
        if name in names[:i]:
            faults.setdefault(name, Fault(f"{name} is in tune.each twice", "$.tune.each"))
    if faults:
        source = experiment.spec.source or experiment.spec.name
        file = Path(source) if experiment.spec.source else None
        raise SpecError(source, [replace(fault, file=file) for fault in faults.values()])
    return searches


def chosen(searches: Sequence["Search"], terms: Sequence[str]) -> list["Search"]:
    """Return the searches that have a trial for which `--where` holds.

    For a searched field, both ends of the range are tested. Raise SelectionError if no search is
    left.
    """
    matching = []
    for search in searches:
        corners = [
            cell
            for params in search.corners()
            for cell in search.cells(params, search.tune.seeds[:1])
        ]
        if any_matches(terms, corners):
            matching.append(search)
    if not matching:
        names = ", ".join(search.name for search in searches)
        raise SelectionError(f"--where {' '.join(terms)} selects no search (there are: {names})")
    return matching


def read_back(experiment: Experiment, name: str, block: Mapping[str, Any]) -> "Search":
    """Return the search whose `as_json` returned this block.

    Raise SpecError if the spec has changed and the block does not fit any more.
    """
    bare = replace(experiment, spec=experiment.spec.model_copy(update={"tune": None}))
    (search,) = design(bare, block)
    return replace(search, name=name, experiment=experiment)


def _name(row: Iterable[Any]) -> str:
    words = [text_of(value) for value in row]
    return _UNSAFE.sub("_", "-".join(words)).strip("._-")[:48] or "all"


@dataclass(frozen=True)
class Search:
    """One search: a configuration and the space around it that is searched."""

    name: str
    """`k1.reward`; `all` where there is one search only."""
    tune: CheckedBlock
    experiment: Experiment
    fixed: Mapping[str, Any]
    """Field -> its value in every trial."""

    @property
    def space(self) -> tuple[Dimension, ...]:
        """Return the fields that the search varies."""
        return self.tune.space

    @property
    def objectives(self) -> tuple[SearchObjective, ...]:
        """Return the objectives of the search."""
        return self.tune.objectives

    def values(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return field -> its value, for a proposal that may lack some fields."""
        return {
            dimension.field: dimension.value(params[dimension.field])
            for dimension in self.space
            if dimension.field in params
        }

    def cells(self, params: Mapping[str, Any], seeds: Sequence[int]) -> list[Cell]:
        """Return the cells of a proposal, one a seed, at the site's scale.

        Raise SpecError for a value that a field refuses.
        """
        values = {one.field: one.value(params[one.field]) for one in self.space}
        return self.cells_at(values, seeds)

    def cells_at(self, values: Mapping[str, Any], seeds: Sequence[int]) -> list[Cell]:
        """Return the same cells, from the values of the fields."""
        spec = self.experiment.spec
        base = next(study for study in spec.studies if study.name == self.tune.study)
        study = Study(
            name=f"{STUDY}-{self.name}"[:64],
            title=f"Trials of search {self.name}",
            base=base.base,
            axes={field: [value] for field, value in {**self.fixed, **values}.items()},
            seeds=tuple(seeds),
        )
        return list(
            at_scale(expand(spec.model_copy(update={"studies": (study,)})), self.experiment.scale)
        )

    def corners(self) -> list[dict[str, Any]]:
        """Return the fewest proposals that contain both ends of every range and every alternative.

        The last value of a field is repeated while another field has more values.
        """
        ends = [
            list(dimension.choices)
            if dimension.choices is not None
            else [dimension.low, dimension.high]
            for dimension in self.space
        ]
        return [
            {
                dimension.field: values[min(i, len(values) - 1)]
                for dimension, values in zip(self.space, ends, strict=True)
            }
            for i in range(max(map(len, ends)))
        ]

    def example_cell(self) -> Cell:
        """Return one cell as an example of the search's cells."""
        return self.cells(self.corners()[0], self.tune.seeds[:1])[0]

    def entry_modules(self) -> set[str]:
        """Return the modules that train the search's cells: the fork server imports them, once."""
        entry = _entry(self.example_cell(), self.experiment) or ""
        return {entry.partition(":")[0]} - {""}

    def declaration(self) -> dict[str, Any]:
        """Return, as JSON, the parts that must not change while the journal is in use."""
        cell = self.example_cell()
        searched = {dimension.field for dimension in self.space} | {"seed"}
        settings = flatten(identity(cell.declared or cell.settings))
        return {
            "objectives": [str(objective) for objective in self.objectives],
            "space": {dimension.field: dimension.as_json() for dimension in self.space},
            "seeds": list(self.tune.seeds),
            "settings": {
                name: value
                for name, value in settings
                if not any(name == field or name.startswith(f"{field}.") for field in searched)
            },
            "scale": cell.scale,
        }

    def as_json(self) -> dict[str, Any]:
        """Return the block of only this search. `read_back` turns it into a search again."""
        alone = {
            "each": {},
            "fixed": dict(self.fixed),
            "study": self.tune.study,
            "seeds": list(self.tune.seeds),
        }
        return self.tune.block.model_copy(update=alone).model_dump(mode="json")

    def faults(self) -> list[Fault]:
        """Return the faults of the ends of the space and of the objectives."""
        faults: dict[str, Fault] = {}
        cells: list[Cell] = []
        for params in self.corners():
            try:
                cells += self.cells(params, self.tune.seeds[:1])
            except SpecError as error:
                for fault in map(self._as_tune_fault, error.faults):
                    faults.setdefault(fault.message, fault)
        for cell in cells:
            try:
                _entry(cell, self.experiment)
            except OrchError as error:
                faults.setdefault(str(error), Fault(str(error), "$.tune.space"))
        if example := next(iter([*cells, *self.experiment.cells]), None):
            metrics = metrics_of(example, self.experiment.spec.evaluation)
            named = [(m, "objectives") for one in self.objectives for m in one.metrics]
            if self.tune.prune_on is not None:
                named += [(metric, "prune_on") for metric in self.tune.prune_on.metrics]
            for metric, where in named:
                if message := metrics.fault(metric):
                    faults.setdefault(message, Fault(message, f"$.tune.{where}"))
        return list(faults.values())

    def _as_tune_fault(self, fault: Fault) -> Fault:
        """Turn a fault in the study that represents the search into a fault of `tune`."""
        if ".axes" in fault.path:
            within = fault.path.partition(".axes")[2]
            key = "space" if any(one.field in within for one in self.space) else "each"
            return replace(fault, path=f"$.tune.{key}{within.removesuffix('[0]')}")
        name, missing, _ = fault.message.partition(" is missing: give it")
        if missing:
            message = (
                f"{name} is missing: a search does not take a study's axes, so give it in "
                "tune.fixed, tune.each or tune.space"
            )
            if name.startswith("kl."):
                message += " (--each 'kl=[k1.reward]')"
            return replace(fault, message=message, path="$.tune.study")
        return replace(fault, path="$.tune.study")


def _entry(cell: Cell, experiment: Experiment) -> str | None:
    """Return the entry point of a cell's launch, or None if it is a program of its own.

    Raise UnsupportedSetting if the backend cannot express the cell.
    """
    paths = experiment.folder.cell(cell).first_paths()
    return plugins.load(cell.settings.backend.name).translate(cell, paths).entry


# ------------------------------------------------------------------ the metrics of its cells

_DIVERGENCES = (
    "kl_reverse",
    "kl_forward",
    "kl_reverse_per_token",
    "kl_forward_per_token",
    "entropy",
    "entropy_per_sequence",
)


class CellMetrics(NamedTuple):
    """The names of the metrics that a cell will have, by their origin."""

    backend: str
    training: tuple[str, ...]
    """Rewards, losses, lengths."""
    own_evaluation: tuple[str, ...]
    """The backend's own evaluation while it trains; most have none."""
    scored: tuple[str, ...]
    """Scores of checkpoints: lm-evaluation-harness's, and divergences if the spec has them."""

    @property
    def all(self) -> tuple[str, ...]:
        """Return the names of all metrics."""
        return self.training + self.own_evaluation + self.scored

    def fault(self, metric: str) -> str:
        """Return a sentence for a metric that the cell will not have; empty if it will."""
        if metric in self.all:
            return ""
        if metric in METRICS:
            fault = (
                f"cells of {self.backend} have no '{metric}': only the embedded trainer gives it"
            )
        else:
            fault = f"no metric is called '{metric}'{did_you_mean(metric, self.all)}"
        family = metric.rpartition("/")[0] + "/"
        near = [name for name in self.all if name.startswith(family) and family.count("/") > 1]
        names = ", ".join(near or [name for name in self.scored if "_domain/" in name])
        intro = f"there are {family}: " if near else "evaluation gives here: "
        more = "" if near else ", and one for each task"
        return fault + (f" ({intro}{names}{more})" if names else "")


def metrics_of(cell: Cell, evaluation: EvaluationSpec) -> CellMetrics:
    """Return the metrics that a cell will have, at its scale."""
    backend = plugins.load(cell.settings.backend.name)
    scored = []
    for task in tasks_of(cell, evaluation):
        domain = "in_domain" if task.domain == "in" else "out_of_domain"
        for kind in ("mean", "pass"):
            scored += [
                f"eval/{task.name}/{kind}@{task.repeats}",
                f"eval/{domain}/{kind}@{task.repeats}",
                f"eval/{domain}/mean",
            ]
    scored += [
        f"eval/{task.name}/{divergence}"
        for task in divergence_tasks(cell, evaluation)
        for divergence in _DIVERGENCES
    ]
    return CellMetrics(
        backend.name,
        tuple(name for name in METRICS if not name.startswith("eval/")),
        backend.own_evaluation if isinstance(backend, EmbeddedTrainer) else (),
        tuple(dict.fromkeys(scored)),
    )


# ------------------------------------------------------------------ an open trial


@dataclass
class OpenTrial:
    """A trial whose end Optuna does not know yet."""

    search: Search
    number: int
    optuna_trial: Any
    params: Mapping[str, Any]
    cells: list[Cell]
    """One cell per seed."""
    records: dict[str, Record] = field(default_factory=dict)
    """Cell id -> record, of the cells that have ended."""
    running: dict[str, Record] = field(default_factory=dict)
    """Cell id -> record, of the cells that train, as last read."""
    running_read_at: float = -math.inf
    """When they were last read, on the monotonic clock."""
    reported: set[int] = field(default_factory=set)
    """Steps (or items) whose values Optuna already has."""
    num_judged: int = 0
    """Number of cells that Wilcoxon's pruner has judged."""

    def released(self) -> list[Cell]:
        """Return the cells that may train now.

        These are all cells, or with Wilcoxon's pruner one seed after another.
        """
        if self.search.tune.block.pruner != "wilcoxon":
            return self.cells
        return self.cells[: self.num_judged + 1]

    def set_attribute(self, name: str, value: Any) -> None:
        """Save a value with the trial, unless another controller has ended the trial."""
        from optuna.exceptions import UpdateFinishedTrialError

        with suppress(UpdateFinishedTrialError):
            self.optuna_trial.set_user_attr(name, value)

    def __str__(self) -> str:
        values = text_of_values(self.search.values(self.params))
        return f"{self.search.name} trial {self.number} ({values})"


def optuna_trial(study: Any, number: int) -> Any:
    """Return Optuna's Trial of a number, which takes intermediate values and attributes."""
    from optuna.trial import Trial

    frozen = study.get_trials(deepcopy=False)[number]
    return Trial(study, frozen._trial_id)  # noqa: SLF001  Optuna has no public way to the id


def text_of_values(values: Mapping[str, Any]) -> str:
    """Return parameter values as text, such as `kl.beta = 0.05, ...`."""
    return ", ".join(
        f"{field} = {value:g}" if isinstance(value, float) else f"{field} = {value}"
        for field, value in values.items()
    )
