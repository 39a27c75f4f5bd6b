"""The metrics that a search's cells will have, known before any of them is trained."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator import plugins
from orchestrator.analysis.runs import measure
from orchestrator.errors import Fault, OrchError, SpecError, did_you_mean
from orchestrator.evaluate.survey import divergence_tasks, tasks_of
from orchestrator.identity import flatten, identity
from orchestrator.metrics.names import METRICS
from orchestrator.records import Cell, EvaluationSpec, Record, Score, Study
from orchestrator.rundir import RunFolder
from orchestrator.runs.experiment import Experiment, at_scale
from orchestrator.search.block import Dimension, SearchObjective, Tune, read
from orchestrator.spec.expand import expand
from orchestrator.spec.fields import text_of

_DIVERGENCES = (
    "kl_reverse",
    "kl_forward",
    "kl_reverse_per_token",
    "kl_forward_per_token",
    "entropy",
    "entropy_per_sequence",
)


class Metrics(NamedTuple):
    """By who measures them."""

    backend: str
    trained: tuple[str, ...]
    """Of training: rewards, losses, lengths."""
    exact: tuple[str, ...]
    """Of the backend's own evaluation while it trains; most have none."""
    scored: tuple[str, ...]
    """Of checkpoints: lm-evaluation-harness's, and divergences where the spec asks for them."""

    @property
    def all(self) -> tuple[str, ...]:
        return self.trained + self.exact + self.scored

    def fault(self, metric: str) -> str:
        """A sentence for a metric that these cells will not have; empty if they will."""
        if metric in self.all:
            return ""
        if metric in METRICS:
            told = f"cells of {self.backend} have no '{metric}': only the embedded trainer gives it"
        else:
            told = f"no metric is called '{metric}'{did_you_mean(metric, self.all)}"
        family = metric.rpartition("/")[0] + "/"
        near = [name for name in self.all if name.startswith(family) and family.count("/") > 1]
        listed = ", ".join(near or [name for name in self.scored if "_domain/" in name])
        what = f"there are {family}: " if near else "evaluation gives here: "
        more = "" if near else ", and one for each task"
        return told + (f" ({what}{listed}{more})" if listed else "")


def metrics_of(cell: Cell, evaluation: EvaluationSpec) -> Metrics:
    """What a cell will have, at its scale."""
    backend = plugins.load(cell.settings.backend.name)
    scored = [
        name
        for task in tasks_of(cell, evaluation)
        for kind in ("mean", "pass")
        for name in (
            f"eval/{task.name}/{kind}@{task.repeats}",
            f"eval/{_domain(task.domain)}/{kind}@{task.repeats}",
            f"eval/{_domain(task.domain)}/mean",
        )
    ]
    scored += [
        f"eval/{task.name}/{one}"
        for task in divergence_tasks(cell, evaluation)
        for one in _DIVERGENCES
    ]
    return Metrics(
        backend.name,
        tuple(name for name in METRICS if not name.startswith("eval/")),
        backend.own_evaluation,
        tuple(dict.fromkeys(scored)),
    )


def _domain(domain: str) -> str:
    return "in_domain" if domain == "in" else "out_of_domain"


# A block becomes searches, one for each configuration; a search turns parameters into cells.


STUDY = "tune"
"""Studies of trials are called so in tags and names."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")


@dataclass(frozen=True)
class Search:
    """One configuration and its space."""

    name: str
    """`k1.reward`; `all` where there is one search only."""
    tune: Tune
    experiment: Experiment
    fixed: Mapping[str, Any]

    @property
    def space(self) -> tuple[Dimension, ...]:
        return self.tune.space

    @property
    def objectives(self) -> tuple[SearchObjective, ...]:
        return self.tune.objectives

    def cells(self, params: Mapping[str, Any], seeds: Sequence[int]) -> list[Cell]:
        """The cells of a proposal, one a seed, at the site's scale.

        Raises SpecError for a value that a field refuses.
        """
        return self.cells_at(
            {each.field: each.value(params[each.field]) for each in self.space}, seeds
        )

    def cells_at(self, values: Mapping[str, Any], seeds: Sequence[int]) -> list[Cell]:
        """The same, from what the fields are set to."""
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
            at_scale(expand(spec.model_copy(update={"studies": (study,)})), self.experiment.where)
        )

    def declared(self) -> dict[str, Any]:
        """What must stay as it is while a journal lasts, as JSON."""
        cell = self.cells(self.corners()[0], self.tune.seeds)[0]
        searched = {each.field for each in self.space} | {"seed"}
        settings = flatten(identity(cell.declared or cell.settings))
        return {
            "objectives": [str(each) for each in self.objectives],
            "space": {each.field: each.plain() for each in self.space},
            "seeds": list(self.tune.seeds),
            "settings": {
                name: value
                for name, value in settings
                if not any(name == field or name.startswith(f"{field}.") for field in searched)
            },
            "scale": cell.scale,
        }

    def plain(self) -> dict[str, Any]:
        """The block of this search alone, as JSON: `read_back` makes it a search again."""
        alone = {
            "each": {},
            "fixed": dict(self.fixed),
            "study": self.tune.study,
            "seeds": list(self.tune.seeds),
        }
        return self.tune.block.model_copy(update=alone).model_dump(mode="json")

    def check(self) -> list[Fault]:
        """What is wrong with the ends of the space and with the objectives, without running."""
        faults: dict[str, Fault] = {}
        cells: list[Cell] = []
        for params in self.corners():
            try:
                cells += self.cells(params, self.tune.seeds[:1])
            except SpecError as error:
                for fault in map(self._told, error.faults):
                    faults.setdefault(fault.message, fault)
        for cell in cells:
            try:
                _translate(cell, self.experiment)
            except OrchError as error:
                faults.setdefault(str(error), Fault(str(error), "$.tune.space"))
        if model := next(iter([*cells, *self.experiment.cells]), None):
            known = metrics_of(model, self.experiment.spec.evaluation)
            pruned = self.tune.prune_on.metrics if self.tune.prune_on else ()
            asked = [(metric, "objectives") for each in self.objectives for metric in each.metrics]
            for metric, where in [*asked, *((metric, "prune_on") for metric in pruned)]:
                if told := known.fault(metric):
                    faults.setdefault(told, Fault(told, f"$.tune.{where}"))
        return list(faults.values())

    def entries(self) -> set[str]:
        """Modules that train its cells, for workers to be forked from."""
        cell = self.cells(self.corners()[0], self.tune.seeds[:1])[0]
        return {(_translate(cell, self.experiment) or "").partition(":")[0]} - {""}

    def corners(self) -> list[dict[str, Any]]:
        """Both ends of every range, and every alternative, each once."""
        ends = [
            list(each.choices) if each.choices is not None else [each.low, each.high]
            for each in self.space
        ]
        count = max(map(len, ends))
        return [
            {
                each.field: values[min(i, len(values) - 1)]
                for each, values in zip(self.space, ends, strict=True)
            }
            for i in range(count)
        ]

    def _told(self, fault: Fault) -> Fault:
        """A fault in the study that stands for the search, as one of `tune`."""
        if ".axes" in fault.path:
            within = fault.path.partition(".axes")[2]
            key = "space" if any(each.field in within for each in self.space) else "each"
            return replace(fault, path=f"$.tune.{key}{within.removesuffix('[0]')}")
        field, missing, _ = fault.message.partition(" is missing: give it")
        if missing:
            told = (
                f"{field} is missing: a search does not take a study's axes, so give it in "
                "tune.fixed, tune.each or tune.space"
            )
            if field.startswith("kl."):
                told += " (--each 'kl=[k1.reward]')"
            return replace(fault, message=told, path="$.tune.study")
        return replace(fault, path="$.tune.study")


def design(experiment: Experiment, flags: Mapping[str, Any] | None = None) -> list[Search]:
    """The searches of an experiment's `tune` block. Raises SpecError with every fault."""
    tune = read(experiment.spec, flags)
    keys, alternatives = list(tune.block.each), list(tune.block.each.values())
    searches = [
        Search(
            _name(row), tune, experiment, {**tune.block.fixed, **dict(zip(keys, row, strict=True))}
        )
        for row in product(*alternatives)
    ]
    faults: dict[str, Fault] = {}
    for search in searches:
        for fault in search.check():
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


def read_back(experiment: Experiment, name: str, plain: Mapping[str, Any]) -> Search:
    """The search that `Search.plain` told. Raises SpecError if the spec has no room for it."""
    spec = experiment.spec.model_copy(update={"tune": None})
    bare = replace(experiment, spec=spec)
    (search,) = design(bare, plain)
    return replace(search, name=name, experiment=experiment)


def _name(row: Iterable[Any]) -> str:
    words = [text_of(value) for value in row]
    return _UNSAFE.sub("_", "-".join(words)).strip("._-")[:48] or "all"


def _translate(cell: Cell, experiment: Experiment) -> str | None:
    """The entry of a cell's launch. Raises UnsupportedSetting."""
    directory = experiment.folder.cell(cell)
    place = directory.first_paths()
    return plugins.load(cell.settings.backend.name).translate(cell, place).entry


# One trial: its cells, what they measured, and what it cost.


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
            for each in self.search.space
            if each.field in self.params
        )
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
