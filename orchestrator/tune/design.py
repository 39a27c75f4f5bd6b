"""A block becomes searches, one for each configuration; a search turns parameters into cells."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from orchestrator import registry
from orchestrator.errors import Fault, OrchError, SpecError
from orchestrator.expand import expand
from orchestrator.experiment import Experiment, at_scale
from orchestrator.fields import text_of
from orchestrator.fingerprint import flatten, identity
from orchestrator.rundir import AttemptDir
from orchestrator.tune.language import Tune, read
from orchestrator.tune.metrics import metrics_of
from orchestrator.tune.objective import Objective
from orchestrator.tune.space import Dimension
from orchestrator.types import Cell, Study

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
    def objectives(self) -> tuple[Objective, ...]:
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
            name=f"{STUDY}-{self.name}"[:64], title=f"Trials of search {self.name}", base=base.base,
            axes={field: [value] for field, value in {**self.fixed, **values}.items()},
            seeds=tuple(seeds),
        )  # fmt: skip
        return list(at_scale(expand(spec.model_copy(update={"studies": (study,)})),
                             self.experiment.where))  # fmt: skip

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
                name: value for name, value in settings
                if not any(name == field or name.startswith(f"{field}.") for field in searched)
            },
            "scale": cell.scale,
        }  # fmt: skip

    def plain(self) -> dict[str, Any]:
        """The block of this search alone, as JSON: `read_back` makes it a search again."""
        alone = {"each": {}, "fixed": dict(self.fixed), "study": self.tune.study,
                 "seeds": list(self.tune.seeds)}  # fmt: skip
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
            {each.field: values[min(i, len(values) - 1)]
             for each, values in zip(self.space, ends, strict=True)}
            for i in range(count)
        ]  # fmt: skip

    def _told(self, fault: Fault) -> Fault:
        """A fault in the study that stands for the search, as one of `tune`."""
        if ".axes" in fault.path:
            within = fault.path.partition(".axes")[2]
            key = "space" if any(each.field in within for each in self.space) else "each"
            return replace(fault, path=f"$.tune.{key}{within.removesuffix('[0]')}")
        field, missing, _ = fault.message.partition(" is missing: give it")
        if missing:
            told = (f"{field} is missing: a search does not take a study's axes, so give it in "
                    "tune.fixed, tune.each or tune.space")  # fmt: skip
            if field.startswith("kl."):
                told += " (--each 'kl=[k1.reward]')"
            return replace(fault, message=told, path="$.tune.study")
        return replace(fault, path="$.tune.study")


def design(experiment: Experiment, flags: Mapping[str, Any] | None = None) -> list[Search]:
    """The searches of an experiment's `tune` block. Raises SpecError with every fault."""
    tune = read(experiment.spec, flags)
    keys, alternatives = list(tune.block.each), list(tune.block.each.values())
    searches = [
        Search(_name(row), tune, experiment, {**tune.block.fixed,
                                              **dict(zip(keys, row, strict=True))})
        for row in product(*alternatives)
    ]  # fmt: skip
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
    place = directory.place(AttemptDir(directory.path / "attempts" / "1", 1))
    return registry.load(cell.settings.backend.name).translate(cell, place).entry
