"""The `tune` block of a spec: what is searched, for what, and how much may be spent.

tune:
  study: beta                            # whose base the trials stand on
  each: {kl: [k1.reward, k3.loss]}       # one search for each, with equal budgets
  space: {kl.beta: log(0.001, 3)}
  objectives: {eval/in_domain/mean: maximize}
  trials: 24
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from orchestrator.errors import Fault, SpecError, did_you_mean
from orchestrator.sentences import sentence, shown
from orchestrator.settings import Frozen, Name, NonNegativeInt, PositiveFloat, PositiveInt
from orchestrator.tune.objective import Direction, Objective, objective
from orchestrator.tune.space import Dimension, dimension
from orchestrator.types import Spec

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
    objectives: tuple[Objective, ...]
    seeds: tuple[int, ...]
    prune_on: Objective | None
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
        faults.append(_fault(f"no study is called '{chosen}'{did_you_mean(chosen, names)} (there "
                             f"are: {', '.join(names)})", "study"))  # fmt: skip
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
    for field, what in (("space", "what to vary: `--space 'kl.beta=log(0.001, 1)'`"),
                        ("objectives", "what for: `--maximize eval/in_domain/mean`")):  # fmt: skip
        if not plain.get(field):
            faults.append(_fault(f"tune.{field} is empty; say {what}, or a `tune` block in the "
                                 "spec", field))  # fmt: skip
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


def _objectives(block: Block, faults: list[Fault]) -> tuple[Objective, ...]:
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
        faults.append(_fault(f"seed {min(known)} has chosen the best trial, so it cannot confirm "
                             "it: give confirm_seeds that are not among seeds",
                             "confirm_seeds"))  # fmt: skip
    if block.confirm_seeds and len(block.objectives) > 1:
        faults.append(_fault("confirm_seeds needs one objective: a front has no single best trial",
                             "confirm_seeds"))  # fmt: skip


def _check_overlap(block: Block, space: Sequence[Dimension], faults: list[Fault]) -> None:
    named = [each.field for each in space]
    for field in named:
        for other, where in ((block.fixed, "fixed"), (block.each, "each")):
            if field in other:
                told = f"{field} is searched, so it cannot be in tune.{where} too"
                faults.append(_fault(told, where, field))
    for field, values in block.each.items():
        if not values:
            faults.append(_fault(f"tune.each.{field} is empty; list what gets a search of its own",
                                 "each", field))  # fmt: skip


def _prune_on(
    block: Block, objectives: Sequence[Objective], faults: list[Fault]
) -> Objective | None:
    if block.pruner == "none":
        if block.prune_on is not None:
            faults.append(_fault("prune_on is for a pruner; tune.pruner is none", "prune_on"))
        return None
    if len(objectives) > 1:
        faults.append(_fault("Optuna prunes for one objective only; leave tune.pruner out, or "
                             "weigh the objectives into one formula", "pruner"))  # fmt: skip
        return None
    if block.pruner == "wilcoxon":
        return objectives[0] if objectives else None
    try:
        found = objective(block.prune_on, objectives[0].direction) if block.prune_on else (
            objectives[0] if objectives else None
        )  # fmt: skip
    except ValueError as error:
        faults.append(_fault(str(error), "prune_on"))
        return None
    if found is not None and found.is_scored:
        faults.append(_fault(f"pruner {block.pruner} looks while a cell trains, and '{found.text}' "
                             "is known after it only: set prune_on to a metric that training "
                             "reports, such as eval/accuracy_in_domain", "prune_on"))  # fmt: skip
        return None
    return found


def _check_failure(block: Block, faults: list[Fault]) -> None:
    values = block.if_failed
    if values != "fail" and len(values) != len(block.objectives):
        faults.append(_fault(f"if_failed needs one value an objective, {len(block.objectives)}; "
                             f"got {len(values)}", "if_failed"))  # fmt: skip


def _fault(message: str, *keys: str) -> Fault:
    return Fault(message, ".".join(["$.tune", *keys]))


def _error(spec: Spec, faults: Sequence[Fault]) -> SpecError:
    source = spec.source or spec.name
    file = Path(source) if spec.source else None
    return SpecError(source, [Fault(f.message, f.path, file) for f in faults])
