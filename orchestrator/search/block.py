"""What a search varies: ranges and choices of spec fields, as written and as Optuna takes them.

kl.beta: log(0.001, 1)               a number, on a logarithmic scale
optimizer.weight_decay: uniform(0, 0.1)
batch.num_minibatches: [1, 2, 4]     alternatives, as an axis of a study would list them
kl.beta: {low: 0.001, high: 1, log: true}
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from pydantic import Field, ValidationError

from orchestrator.errors import Fault, SpecError, did_you_mean
from orchestrator.metrics.names import METRICS
from orchestrator.records import Spec
from orchestrator.settings import Frozen, Name, NonNegativeInt, PositiveFloat, PositiveInt
from orchestrator.spec.fields import FIELDS, LABELS, text_of, unknown
from orchestrator.spec.sentences import sentence, shown

DIGITS = 4
"""A proposed number is rounded to so many significant digits: it stays readable in names, and a
value that was tried once is the same cell when it comes again."""

_CALL = re.compile(r"(log|uniform)\(\s*([^,()\s]+)\s*,\s*([^,()\s]+)\s*\)")
_GRAMMAR = "log(low, high), uniform(low, high) or a list of alternatives"


class Dimension(NamedTuple):
    """One field a search varies: a range, or alternatives (label -> value)."""

    field: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False
    """Only whole numbers."""
    choices: Mapping[str, Any] | None = None

    @property
    def is_range(self) -> bool:
        return self.choices is None

    def value(self, proposed: Any) -> Any:
        """What the field is set to for a proposal of the sampler's."""
        if self.choices is not None:
            return self.choices[proposed]
        if self.whole:
            return int(proposed)
        return min(self.high, max(self.low, float(f"{float(proposed):.{DIGITS}g}")))

    def param(self, value: Any) -> Any:
        """The sampler's name for a field's value. Raises LookupError if it lies outside."""
        if self.choices is not None:
            for label, choice in self.choices.items():
                if choice == value:
                    return label
            raise LookupError(value)
        if not isinstance(value, int | float) or not self.low <= value <= self.high:
            raise LookupError(value)
        return value

    def plain(self) -> object:
        """As JSON; equal for equal dimensions, however they were written."""
        if self.choices is not None:
            return dict(self.choices)
        return {"low": self.low, "high": self.high, "log": self.log}

    def __str__(self) -> str:
        if self.choices is not None:
            return ", ".join(self.choices)
        return f"{'log' if self.log else 'uniform'}({self.low:g}, {self.high:g})"


def dimension(field: str, written: object) -> Dimension:
    """Reads one entry of `tune.space`. Raises ValueError with a sentence."""
    name = LABELS.get(field) or field
    if name == "seed":
        raise ValueError("a search does not choose the seed; write `tune.seeds: [...]`")
    if name not in FIELDS:
        raise ValueError(unknown(field))
    if isinstance(written, list | tuple):
        return Dimension(name, choices=_choices(field, written))
    low, high, log = _range(field, written)
    if FIELDS[name].section is not None or not _is_number(name):
        raise ValueError(f"{field} is no number, so it has no range; list its alternatives")
    whole = float not in _types(name)
    if whole and not (low.is_integer() and high.is_integer()):
        raise ValueError(f"{field} takes whole numbers; got {low:g} to {high:g}")
    if low >= high:
        told = "is empty" if low == high else "is inverted"
        raise ValueError(
            f"the range of {field} {told}: low must be below high; got {low:g} and {high:g}"
        )
    if log and low <= 0:
        raise ValueError(
            f"a logarithmic scale has no {low:g}; write {field}: uniform({low:g}, "
            f"{high:g}), or start above 0"
        )
    return Dimension(name, low, high, log, whole)


def distributions(space: Sequence[Dimension]) -> dict[str, Any]:
    """The space as Optuna takes it."""
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    found: dict[str, Any] = {}
    for each in space:
        if each.choices is not None:
            found[each.field] = CategoricalDistribution(tuple(each.choices))
        elif each.whole:
            found[each.field] = IntDistribution(int(each.low), int(each.high), log=each.log)
        else:
            found[each.field] = FloatDistribution(each.low, each.high, log=each.log)
    return found


def _choices(field: str, written: Sequence[object]) -> dict[str, Any]:
    if not written:
        raise ValueError(f"the space of {field} is empty; list at least two alternatives")
    labels = [text_of(value) for value in written]
    for i, label in enumerate(labels):
        if label in labels[:i]:
            raise ValueError(f"{label} is among the alternatives of {field} twice")
    return dict(zip(labels, written, strict=True))


def _range(field: str, written: object) -> tuple[float, float, bool]:
    if isinstance(written, str):
        call = _CALL.fullmatch(written.strip())
        if call is None:
            raise ValueError(f"the space of {field} is {_GRAMMAR}; got {shown(written)}")
        return _number(field, call[2]), _number(field, call[3]), call[1] == "log"
    if isinstance(written, Mapping):
        for key in written:
            if key not in ("low", "high", "log"):
                hint = did_you_mean(str(key), ("low", "high", "log"))
                raise ValueError(f"the range of {field} has low, high and log, no {key!r}{hint}")
        if "low" not in written or "high" not in written:
            raise ValueError(f"the range of {field} needs low and high")
        log = written.get("log", False)
        if not isinstance(log, bool):
            raise ValueError(f"log of {field} must be true or false; got {shown(log)}")
        return _number(field, written["low"]), _number(field, written["high"]), log
    raise ValueError(f"the space of {field} is {_GRAMMAR}; got {shown(written)}")


def _number(field: str, written: object) -> float:
    try:
        value = float(written)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        value = float("nan")
    if isinstance(written, bool) or not abs(value) < float("inf"):
        raise ValueError(f"the ends of {field} are finite numbers; got {shown(written)}")
    return value


def _types(field: str) -> set[object]:
    """The types an annotation allows, at any depth."""
    found: set[object] = set()
    stack: list[Any] = [FIELDS[field].annotation]
    while stack:
        one = stack.pop()
        stack += get_args(one)
        found.add(one)
    return found


def _is_number(field: str) -> bool:
    return bool(_types(field) & {int, float}) and bool not in _types(field)


# What a search is after: a metric, or a weighted sum of metrics.
#
# eval/in_domain/mean
# eval/accuracy_in_domain - 0.5 * eval/kl_reverse


Direction = Literal["maximize", "minimize"]

_TERM = re.compile(r"(?:(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*\*\s*)?([A-Za-z]\w*/[\w./@+-]+)")
_SIGN = re.compile(r"\s([+-])\s")


class SearchObjective(NamedTuple):
    """A sum of weighted metrics and which way is better."""

    text: str
    terms: tuple[tuple[float, str], ...]
    direction: Direction = "maximize"

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(metric for _, metric in self.terms)

    @property
    def sign(self) -> int:
        """1 where more is better, else -1."""
        return 1 if self.direction == "maximize" else -1

    @property
    def is_scored(self) -> bool:
        """Whether some metric is lm-evaluation-harness's, which training does not report."""
        return not all(is_reported(metric) for metric in self.metrics)

    def value(self, values: Mapping[str, float]) -> float:
        """NaN if a metric is not among the values."""
        return math.fsum(weight * values.get(metric, math.nan) for weight, metric in self.terms)

    def missing(self, values: Mapping[str, float]) -> list[str]:
        return [metric for metric in self.metrics if metric not in values]

    def __str__(self) -> str:
        return f"{self.direction} {self.text}"


def objective(text: str, direction: Direction = "maximize") -> SearchObjective:
    """Reads a formula. Raises ValueError with a sentence."""
    first, *rest = _SIGN.split(f" {text.strip()}" if text.strip()[:1] in "+-" else text.strip())
    parts = [*([("+", first)] if first.strip() else []), *zip(rest[::2], rest[1::2], strict=True)]
    terms = []
    for sign, part in parts:
        found = _TERM.fullmatch(part.strip())
        if found is None:
            raise ValueError(
                f"an objective is a sum of metrics, `a/b` or `0.5 * a/b`, with spaces around + "
                f"and -; got {part.strip()!r} in {text!r}"
            )
        weight = float(found[1] or 1)
        terms.append((-weight if sign == "-" else weight, found[2]))
    if not terms:
        raise ValueError("an objective names at least one metric; it is empty")
    return SearchObjective(" ".join(text.split()), tuple(terms), direction)


def is_reported(metric: str) -> bool:
    """Whether training itself reports a metric, step by step."""
    return metric in METRICS or metric.startswith("eval/accuracy/")


# The `tune` block of a spec: what is searched, for what, and how much may be spent.
#
# tune:
#   study: beta                            # whose base the trials stand on
#   each: {kl: [k1.reward, k3.loss]}       # one search for each, with equal budgets
#   space: {kl.beta: log(0.001, 3)}
#   objectives: {eval/in_domain/mean: maximize}
#   trials: 24


Sampler = Literal["tpe", "gp", "random", "qmc"]
"""tpe: cheap at any number of trials; gp: a Gaussian process, which needs fewer trials in one or
two dimensions, and PyTorch; random and qmc (Sobol): as if every trial were the first."""
Pruner = Literal["none", "hyperband", "median", "wilcoxon"]


class Block(Frozen):
    """The block as written; `orch tune --help` names the flags that replace parts of it."""

    name: Name = "search"
    """Folder below tune/ in the experiment's folder; another name is another search."""
    study: str | None = None
    """None: the first study of the spec."""
    space: dict[str, Any]
    objectives: dict[str, Direction]
    """Formula -> direction. Two or more make a Pareto front."""
    fixed: dict[str, Any] = Field(default_factory=dict)
    """Fields set in every trial."""
    each: dict[str, list[Any]] = Field(default_factory=dict)
    """Fields of which every combination gets a search of its own."""
    seeds: list[NonNegativeInt] | None = None
    """Seeds of each trial, whose mean is told; None: the study's."""
    confirm_seeds: list[NonNegativeInt] = Field(default_factory=list)
    """Fresh seeds on which what each search recommends (else its best trial) is trained again once
    it is over."""
    trials: PositiveInt = 20
    """Of each search."""
    parallel: PositiveInt = 1
    """Trials at the same time."""
    max_gpu_hours: PositiveFloat | None = None
    """Of each search; no trial is begun that is expected to go beyond it."""
    max_cpu_hours: PositiveFloat | None = None
    """The same for embedded cells, which use no GPU."""
    sampler: Sampler = "tpe"
    sampler_seed: NonNegativeInt = 0
    pruner: Pruner = "none"
    prune_on: str | None = None
    """A metric that training reports, to prune by; None: the objective, where it is one."""
    if_failed: Literal["fail"] | list[float] = "fail"
    """Of a trial with a failed cell or without a number: `fail` (the sampler leaves it out), or
    the values it is given, one an objective."""
    stop_on_collapse: bool = True
    """End a trial as soon as one of its seeds has collapsed, and give it up as pruned."""
    reuse: bool = True
    """Start from what cells of the spec's own grid have already given."""


@dataclass(frozen=True)
class Tune:
    """A checked block."""

    block: Block
    study: str
    space: tuple[Dimension, ...]
    objectives: tuple[SearchObjective, ...]
    seeds: tuple[int, ...]
    prune_on: SearchObjective | None
    """What intermediate values are of; None without pruning by them."""


def read(spec: Spec, flags: Mapping[str, Any] | None = None) -> Tune:
    """The spec's block with a command's flags over it. Raises SpecError with every fault."""
    faults: list[Fault] = []
    plain = {**(spec.tune or {}), **(flags or {})}
    block = _block(plain, faults)
    if block is None:
        raise _error(spec, faults)
    names = [study.name for study in spec.studies]
    chosen = block.study or names[0]
    if chosen not in names:
        faults.append(
            _fault(
                f"no study is called '{chosen}'{did_you_mean(chosen, names)} (there "
                f"are: {', '.join(names)})",
                "study",
            )
        )
    space = _space(block, faults)
    objectives = _objectives(block, faults)
    study = next((s for s in spec.studies if s.name == chosen), spec.studies[0])
    seeds = tuple(study.seeds if block.seeds is None else block.seeds)
    _check_seeds(block, seeds, faults)
    _check_overlap(block, space, faults)
    prune_on = _prune_on(block, objectives, faults)
    _check_failure(block, faults)
    if faults:
        raise _error(spec, faults)
    return Tune(block, chosen, space, objectives, seeds, prune_on)


def _block(plain: Mapping[str, Any], faults: list[Fault]) -> Block | None:
    for field, what in (
        ("space", "what to vary: `--space 'kl.beta=log(0.001, 1)'`"),
        ("objectives", "what for: `--maximize eval/in_domain/mean`"),
    ):
        if not plain.get(field):
            faults.append(
                _fault(f"tune.{field} is empty; say {what}, or a `tune` block in the spec", field)
            )
    try:
        block = Block.model_validate({"space": {}, "objectives": {}, **plain})
    except ValidationError as error:
        for detail in error.errors():
            loc = [str(key) for key in detail["loc"]]
            known = tuple(Block.model_fields) if len(loc) == 1 else ()
            faults.append(_fault(sentence(detail, ".".join(["tune", *loc]), known), *loc))
        return None
    return None if faults else block


def _space(block: Block, faults: list[Fault]) -> tuple[Dimension, ...]:
    found = []
    for field, written in block.space.items():
        try:
            found.append(dimension(field, written))
        except ValueError as error:
            faults.append(_fault(str(error), "space", field))
    return tuple(found)


def _objectives(block: Block, faults: list[Fault]) -> tuple[SearchObjective, ...]:
    found = []
    for text, direction in block.objectives.items():
        try:
            found.append(objective(text, direction))
        except ValueError as error:
            faults.append(_fault(str(error), "objectives", text))
    return tuple(found)


def _check_seeds(block: Block, seeds: Sequence[int], faults: list[Fault]) -> None:
    if not seeds or len(set(seeds)) < len(seeds):
        told = "is empty" if not seeds else f"names a seed twice: {shown(list(seeds))}"
        faults.append(_fault(f"tune.seeds {told}", "seeds"))
    known = set(seeds) & set(block.confirm_seeds)
    if known:
        faults.append(
            _fault(
                f"seed {min(known)} has chosen the best trial, so it cannot confirm "
                "it: give confirm_seeds that are not among seeds",
                "confirm_seeds",
            )
        )
    if block.confirm_seeds and len(block.objectives) > 1:
        faults.append(
            _fault(
                "confirm_seeds needs one objective: a front has no single best trial",
                "confirm_seeds",
            )
        )


def _check_overlap(block: Block, space: Sequence[Dimension], faults: list[Fault]) -> None:
    named = [each.field for each in space]
    for field in named:
        for other, where in ((block.fixed, "fixed"), (block.each, "each")):
            if field in other:
                told = f"{field} is searched, so it cannot be in tune.{where} too"
                faults.append(_fault(told, where, field))
    for field, values in block.each.items():
        if not values:
            faults.append(
                _fault(
                    f"tune.each.{field} is empty; list what gets a search of its own", "each", field
                )
            )


def _prune_on(
    block: Block, objectives: Sequence[SearchObjective], faults: list[Fault]
) -> SearchObjective | None:
    if block.pruner == "none":
        if block.prune_on is not None:
            faults.append(_fault("prune_on is for a pruner; tune.pruner is none", "prune_on"))
        return None
    if len(objectives) > 1:
        faults.append(
            _fault(
                "Optuna prunes for one objective only; leave tune.pruner out, or "
                "weigh the objectives into one formula",
                "pruner",
            )
        )
        return None
    if block.pruner == "wilcoxon":
        return objectives[0] if objectives else None
    try:
        found = (
            objective(block.prune_on, objectives[0].direction)
            if block.prune_on
            else (objectives[0] if objectives else None)
        )
    except ValueError as error:
        faults.append(_fault(str(error), "prune_on"))
        return None
    if found is not None and found.is_scored:
        faults.append(
            _fault(
                f"pruner {block.pruner} looks while a cell trains, and '{found.text}' "
                "is known after it only: set prune_on to a metric that training "
                "reports, such as eval/accuracy_in_domain",
                "prune_on",
            )
        )
        return None
    return found


def _check_failure(block: Block, faults: list[Fault]) -> None:
    values = block.if_failed
    if values != "fail" and len(values) != len(block.objectives):
        faults.append(
            _fault(
                f"if_failed needs one value an objective, {len(block.objectives)}; "
                f"got {len(values)}",
                "if_failed",
            )
        )


def _fault(message: str, *keys: str) -> Fault:
    return Fault(message, ".".join(["$.tune", *keys]))


def _error(spec: Spec, faults: Sequence[Fault]) -> SpecError:
    source = spec.source or spec.name
    file = Path(source) if spec.source else None
    return SpecError(source, [Fault(f.message, f.path, file) for f in faults])
