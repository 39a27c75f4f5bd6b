"""The `tune` block of a spec: the space of a search, its objectives and its budget.

    tune:
      study: beta                            # the trials use its base
      each: {kl: [k1.reward, k3.loss]}       # one search for each, with equal budgets
      space: {kl.beta: log(0.001, 3)}
      objectives: {eval/accuracy_in_domain - 0.5 * eval/kl_reverse: maximize}
      trials: 24

An entry of `space` is a range or a list of alternatives, as an axis of a study lists them:

    kl.beta: log(0.001, 1)               # a number, on a logarithmic scale
    optimizer.weight_decay: uniform(0, 0.1)
    batch.num_minibatches: [1, 2, 4]
    kl.beta: {low: 0.001, high: 1, log: true}

An objective is a metric or a weighted sum of metrics. `read_block` checks all of it;
`distributions` and `sampler` translate it for Optuna. Only functions of this package import Optuna.
"""

import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from pydantic import Field, ValidationError

from orchestrator.environments.extras import install_line
from orchestrator.errors import EnvironmentFault, Fault, OrchError, SpecError, did_you_mean
from orchestrator.metrics.names import METRICS
from orchestrator.records import Spec
from orchestrator.settings import Frozen, Name, NonNegativeInt, PositiveFloat, PositiveInt
from orchestrator.spec.fields import FIELDS, LABELS, text_of, unknown
from orchestrator.spec.sentences import sentence, shown

Direction = Literal["maximize", "minimize"]
Sampler = Literal["tpe", "gp", "random", "qmc"]
"""tpe: cheap at any number of trials; gp: a Gaussian process, which needs fewer trials in one or
two dimensions, and PyTorch; random and qmc (Sobol) learn nothing from earlier trials."""
Pruner = Literal["none", "hyperband", "median", "wilcoxon"]


class TuneBlock(Frozen):
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
    """Seeds of each trial; Optuna gets the mean over them. None: the study's."""
    confirm_seeds: list[NonNegativeInt] = Field(default_factory=list)
    """Fresh seeds. When a search is over, its recommended values (or else its best trial) are
    trained again with them."""
    trials: PositiveInt = 20
    """Number of trials of each search."""
    parallel: PositiveInt = 1
    """Number of trials that run at the same time."""
    max_gpu_hours: PositiveFloat | None = None
    """GPU-hours of each search. A trial that is expected to exceed them is not started."""
    max_cpu_hours: PositiveFloat | None = None
    """CPU-hours of each search, for embedded cells, which use no GPU."""
    sampler: Sampler = "tpe"
    sampler_seed: NonNegativeInt = 0
    pruner: Pruner = "none"
    prune_on: str | None = None
    """The metric by which trials are pruned, one that training reports. None: the objective, if
    training reports it."""
    if_failed: Literal["fail"] | list[float] = "fail"
    """The result of a trial that has a failed cell or no finite value: `fail` (the sampler ignores
    the trial), or one value for each objective."""
    stop_on_collapse: bool = True
    """End a trial as soon as one of its seeds has collapsed, and give it up as pruned."""
    reuse: bool = True
    """Start from the results that cells of the spec's own grid already have."""


# ------------------------------------------------------------------ ranges and alternatives

SIGNIFICANT_DIGITS = 4
"""Significant digits of a proposed number. A rounded number stays readable in names, and a value
that is proposed twice is one cell."""

_CALL = re.compile(r"(log|uniform)\(\s*([^,()\s]+)\s*,\s*([^,()\s]+)\s*\)")
_GRAMMAR = "log(low, high), uniform(low, high) or a list of alternatives"


class Dimension(NamedTuple):
    """One field that a search varies: a range, or alternatives (label -> value)."""

    field: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    is_integer: bool = False
    choices: Mapping[str, Any] | None = None

    @property
    def is_range(self) -> bool:
        """Return True for a range, False for a list of alternatives."""
        return self.choices is None

    def value(self, proposed: Any) -> Any:
        """Return the value of the field for a proposal of the sampler."""
        if self.choices is not None:
            return self.choices[proposed]
        if self.is_integer:
            return int(proposed)
        return min(self.high, max(self.low, float(f"{float(proposed):.{SIGNIFICANT_DIGITS}g}")))

    def param(self, value: Any) -> Any:
        """Return the sampler's name for a value of the field.

        Raise LookupError for a value outside the space.
        """
        if self.choices is not None:
            for label, choice in self.choices.items():
                if choice == value:
                    return label
            raise LookupError(value)
        if not isinstance(value, int | float) or not self.low <= value <= self.high:
            raise LookupError(value)
        return value

    def as_json(self) -> object:
        """Return plain data that is equal for equal dimensions, however they were written."""
        if self.choices is not None:
            return dict(self.choices)
        return {"low": self.low, "high": self.high, "log": self.log}

    def __str__(self) -> str:
        if self.choices is not None:
            return ", ".join(self.choices)
        return f"{'log' if self.log else 'uniform'}({self.low:g}, {self.high:g})"


def parse_dimension(field: str, written: object) -> Dimension:
    """Read one entry of `tune.space`. Raise ValueError with a sentence."""
    name = LABELS.get(field) or field
    if name == "seed":
        raise ValueError("a search does not choose the seed; write `tune.seeds: [...]`")
    if name not in FIELDS:
        raise ValueError(unknown(field))
    if isinstance(written, list | tuple):
        return Dimension(name, choices=_choices(field, written))
    low, high, log = _range(field, written)
    types = _annotated_types(name)
    if FIELDS[name].section is not None or bool in types or not types & {int, float}:
        raise ValueError(f"{field} is no number, so it has no range; list its alternatives")
    is_integer = float not in types
    if is_integer and not (low.is_integer() and high.is_integer()):
        raise ValueError(f"{field} takes whole numbers; got {low:g} to {high:g}")
    if low >= high:
        fault = "is empty" if low == high else "is inverted"
        raise ValueError(
            f"the range of {field} {fault}: low must be below high; got {low:g} and {high:g}"
        )
    if log and low <= 0:
        raise ValueError(
            f"a logarithmic scale has no {low:g}; write {field}: uniform({low:g}, "
            f"{high:g}), or start above 0"
        )
    return Dimension(name, low, high, log, is_integer)


def _choices(field: str, written: Sequence[object]) -> dict[str, Any]:
    if not written:
        raise ValueError(f"the space of {field} is empty; list at least two alternatives")
    labels = [text_of(value) for value in written]
    for i, label in enumerate(labels):
        if label in labels[:i]:
            raise ValueError(f"{label} is among the alternatives of {field} twice")
    return dict(zip(labels, written, strict=True))


def _range(field: str, written: object) -> tuple[float, float, bool]:
    """Return low, high and whether the scale is logarithmic."""
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
        value = float(written)  # type: ignore[arg-type]  # TypeError is caught below
    except (TypeError, ValueError):
        value = float("nan")
    if isinstance(written, bool) or not abs(value) < float("inf"):
        raise ValueError(f"the ends of {field} are finite numbers; got {shown(written)}")
    return value


def _annotated_types(field: str) -> set[object]:
    """Return the types that the annotation of a field allows, at any depth."""
    types: set[object] = set()
    stack: list[Any] = [FIELDS[field].annotation]
    while stack:
        annotation = stack.pop()
        stack += get_args(annotation)
        types.add(annotation)
    return types


# ------------------------------------------------------------------ objectives

_TERM = re.compile(r"(?:(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*\*\s*)?([A-Za-z]\w*/[\w./@+-]+)")
_SIGN = re.compile(r"\s([+-])\s")


class SearchObjective(NamedTuple):
    """A sum of weighted metrics and which way is better."""

    text: str
    terms: tuple[tuple[float, str], ...]
    """(weight, metric)."""
    direction: Direction = "maximize"

    @property
    def metrics(self) -> tuple[str, ...]:
        """Return the metrics of the sum."""
        return tuple(metric for _, metric in self.terms)

    @property
    def sign(self) -> int:
        """Return 1 if more is better, else -1."""
        return 1 if self.direction == "maximize" else -1

    @property
    def is_scored(self) -> bool:
        """Return True if a metric comes from lm-evaluation-harness.

        Training does not report that one.
        """
        return not all(is_reported(metric) for metric in self.metrics)

    def value(self, values: Mapping[str, float]) -> float:
        """Return the weighted sum; NaN if a metric is not among the values."""
        return math.fsum(weight * values.get(metric, math.nan) for weight, metric in self.terms)

    def missing(self, values: Mapping[str, float]) -> list[str]:
        """Return the metrics of the formula that the values lack."""
        return [metric for metric in self.metrics if metric not in values]

    def __str__(self) -> str:
        return f"{self.direction} {self.text}"


def parse_objective(text: str, direction: Direction = "maximize") -> SearchObjective:
    """Read a formula such as `a/b - 0.5 * c/d`. Raise ValueError with a sentence."""
    # with a space before it, a leading sign splits like a sign between two terms
    first, *rest = _SIGN.split(f" {text.strip()}" if text.strip()[:1] in "+-" else text.strip())
    parts = [*([("+", first)] if first.strip() else []), *zip(rest[::2], rest[1::2], strict=True)]
    terms = []
    for sign, part in parts:
        term = _TERM.fullmatch(part.strip())
        if term is None:
            raise ValueError(
                f"an objective is a sum of metrics, `a/b` or `0.5 * a/b`, with spaces around + "
                f"and -; got {part.strip()!r} in {text!r}"
            )
        weight = float(term[1] or 1)
        terms.append((-weight if sign == "-" else weight, term[2]))
    if not terms:
        raise ValueError("an objective names at least one metric; it is empty")
    return SearchObjective(" ".join(text.split()), tuple(terms), direction)


def is_reported(metric: str) -> bool:
    """Return True for a metric that training itself reports, step by step."""
    return metric in METRICS or metric.startswith("eval/accuracy/")


# ------------------------------------------------------------------ the block, checked


@dataclass(frozen=True)
class CheckedBlock:
    """A block without faults, with its space and objectives parsed."""

    block: TuneBlock
    study: str
    space: tuple[Dimension, ...]
    objectives: tuple[SearchObjective, ...]
    seeds: tuple[int, ...]
    prune_on: SearchObjective | None
    """The metric of intermediate values. None: no pruning by them."""


def read_block(spec: Spec, flags: Mapping[str, Any] | None = None) -> CheckedBlock:
    """Check the spec's block, with a command's flags merged over it. Raise SpecError with every
    fault."""
    faults: list[Fault] = []
    block = _parsed({**(spec.tune or {}), **(flags or {})}, faults)
    if block is None:
        raise _error(spec, faults)
    names = [study.name for study in spec.studies]
    name = block.study or names[0]
    if name not in names:
        hint = f"{did_you_mean(name, names)} (there are: {', '.join(names)})"
        faults.append(_fault(f"no study is called '{name}'{hint}", "study"))
    space = []
    for field, written in block.space.items():
        try:
            space.append(parse_dimension(field, written))
        except ValueError as error:
            faults.append(_fault(str(error), "space", field))
    objectives = []
    for formula, direction in block.objectives.items():
        try:
            objectives.append(parse_objective(formula, direction))
        except ValueError as error:
            faults.append(_fault(str(error), "objectives", formula))
    study = next((s for s in spec.studies if s.name == name), spec.studies[0])
    seeds = tuple(study.seeds if block.seeds is None else block.seeds)
    faults += _seed_faults(block, seeds)
    faults += _overlap_faults(block, [dimension.field for dimension in space])
    prune_on = _prune_on(block, objectives, faults)
    if block.if_failed != "fail" and len(block.if_failed) != len(block.objectives):
        counts = f"{len(block.objectives)}; got {len(block.if_failed)}"
        faults.append(_fault(f"if_failed needs one value an objective, {counts}", "if_failed"))
    if faults:
        raise _error(spec, faults)
    return CheckedBlock(block, name, tuple(space), tuple(objectives), seeds, prune_on)


def block_of_flags(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags of `orch tune` that were given, as entries of the block.

    Raise OrchError for a flag that cannot be read.
    """
    block = {name: value for name, value in flags.items() if value not in (None, ())}
    for name in ("space", "each"):
        if name in block:
            block[name] = dict(_pair(f"--{name}", text) for text in block[name])
    if "seeds" in block:
        block["seeds"] = _yaml("--seeds", block["seeds"])
    objectives = dict.fromkeys(block.pop("maximize", ()), "maximize")
    objectives |= dict.fromkeys(block.pop("minimize", ()), "minimize")
    return block | ({"objectives": objectives} if objectives else {})


def _pair(flag: str, text: str) -> tuple[str, Any]:
    field, equals, value = text.partition("=")
    if not equals:
        raise OrchError(f"{flag} is FIELD=...; got {text!r}")
    return field.strip(), _yaml(flag, value)


def _yaml(flag: str, text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise OrchError(f"{flag} cannot be read: {text!r} is no YAML value") from error


def _parsed(written: Mapping[str, Any], faults: list[Fault]) -> TuneBlock | None:
    """Return the block. If it has faults, append them to `faults` and return None."""
    for field, what in (
        ("space", "what to vary: `--space 'kl.beta=log(0.001, 1)'`"),
        ("objectives", "what for: `--maximize eval/in_domain/mean`"),
    ):
        if not written.get(field):
            faults.append(
                _fault(f"tune.{field} is empty; say {what}, or a `tune` block in the spec", field)
            )
    try:
        block = TuneBlock.model_validate({"space": {}, "objectives": {}, **written})
    except ValidationError as error:
        for detail in error.errors():
            keys = [str(key) for key in detail["loc"]]
            names = tuple(TuneBlock.model_fields) if len(keys) == 1 else ()
            faults.append(_fault(sentence(detail, ".".join(["tune", *keys]), names), *keys))
        return None
    return None if faults else block


def _seed_faults(block: TuneBlock, seeds: Sequence[int]) -> Iterator[Fault]:
    if not seeds:
        yield _fault("tune.seeds is empty", "seeds")
    elif len(set(seeds)) < len(seeds):
        yield _fault(f"tune.seeds names a seed twice: {shown(list(seeds))}", "seeds")
    if shared := set(seeds) & set(block.confirm_seeds):
        yield _fault(
            f"seed {min(shared)} has chosen the best trial, so it cannot confirm "
            "it: give confirm_seeds that are not among seeds",
            "confirm_seeds",
        )
    if block.confirm_seeds and len(block.objectives) > 1:
        yield _fault(
            "confirm_seeds needs one objective: a front has no single best trial", "confirm_seeds"
        )


def _overlap_faults(block: TuneBlock, searched: Sequence[str]) -> Iterator[Fault]:
    for field in searched:
        for other, where in ((block.fixed, "fixed"), (block.each, "each")):
            if field in other:
                message = f"{field} is searched, so it cannot be in tune.{where} too"
                yield _fault(message, where, field)
    for field, values in block.each.items():
        if not values:
            message = f"tune.each.{field} is empty; list what gets a search of its own"
            yield _fault(message, "each", field)


def _prune_on(
    block: TuneBlock, objectives: Sequence[SearchObjective], faults: list[Fault]
) -> SearchObjective | None:
    """Return the metric that a pruner compares. Return None without one, or after appending to
    `faults`."""
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
    if len(objectives) != 1:
        return None
    (formula,) = objectives
    if block.pruner == "wilcoxon":
        return formula
    try:
        if block.prune_on:
            formula = parse_objective(block.prune_on, formula.direction)
    except ValueError as error:
        faults.append(_fault(str(error), "prune_on"))
        return None
    if formula.is_scored:
        faults.append(
            _fault(
                f"pruner {block.pruner} looks while a cell trains, and '{formula.text}' "
                "is known after it only: set prune_on to a metric that training "
                "reports, such as eval/accuracy_in_domain",
                "prune_on",
            )
        )
    return formula


def _fault(message: str, *keys: str) -> Fault:
    return Fault(message, ".".join(["$.tune", *keys]))


def _error(spec: Spec, faults: Sequence[Fault]) -> SpecError:
    source = spec.source or spec.name
    file = Path(source) if spec.source else None
    return SpecError(source, [Fault(f.message, f.path, file) for f in faults])


# ------------------------------------------------------------------ in Optuna's form


def distributions(space: Sequence[Dimension]) -> dict[str, Any]:
    """Return Optuna's distribution of each field."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    by_field: dict[str, Any] = {}
    for one in space:
        if one.choices is not None:
            # by label: Optuna takes no mapping as a category
            by_field[one.field] = CategoricalDistribution(tuple(one.choices))
        elif one.is_integer:
            by_field[one.field] = IntDistribution(int(one.low), int(one.high), log=one.log)
        else:
            by_field[one.field] = FloatDistribution(one.low, one.high, log=one.log)
    return by_field


def sampler(block: TuneBlock, trial: int) -> Any:
    """Return Optuna's sampler for the trial of this number.

    Its seed depends on the number, because Optuna's journal holds no sampler state. So a resumed
    search proposes the same values as one that was not stopped, and two controllers never propose
    equal ones.
    """
    from optuna import samplers

    seed = block.sampler_seed + 1_000_003 * trial
    # if all trials before the model miss an optimum, the model finds it late
    startup = max(3, min(10, 2 * block.trials // 5))
    kind = block.sampler
    if kind == "gp":
        _require_torch()
        if trial < startup:
            kind = "qmc"  # covers the whole range; a few random values may not
    with without_experimental_warnings():
        match kind:
            case "random":
                return samplers.RandomSampler(seed=seed)
            case "qmc":
                return samplers.QMCSampler(
                    seed=block.sampler_seed,
                    scramble=True,
                    warn_asynchronous_seeding=False,
                    warn_independent_sampling=False,
                )
            case "gp":
                return samplers.GPSampler(
                    seed=seed, n_startup_trials=startup, deterministic_objective=False
                )
            case "tpe":
                return samplers.TPESampler(seed=seed, n_startup_trials=startup)


@contextmanager
def without_experimental_warnings() -> Iterator[None]:
    """Silence Optuna 5's warnings that a sampler or pruner may change in a later release."""
    from optuna.exceptions import ExperimentalWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        yield


def _require_torch() -> None:
    """Raise EnvironmentFault if PyTorch is missing.

    Optuna would report it only at the tenth trial.
    """
    if find_spec("torch") is None:
        raise EnvironmentFault(
            "sampler gp needs PyTorch, which is not installed here; take sampler tpe, or install "
            f"orch with it: {install_line('micro')}"
        )
