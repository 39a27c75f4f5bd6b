"""What a search over beta meets, as a curve and its noise: by the closed form, and as measured.

trained.json holds final accuracies and KL divergences of real training (k1.reward on the policy
`amber`, shipped before `elder`, skill `sort`; `python -m benchmarks.tune train` makes it
anew): `default`, 100 updates at a constant rate, as the shipped specs are rehearsed; `long`, 300
updates with a linear schedule.
"""

import json
import math
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from orchestrator.records import AttemptPaths
from orchestrator.search.block import distributions, sampler
from orchestrator.search.design import Search
from orchestrator.search.results import SearchOutcome, TrialResult
from orchestrator.settings import Cadence
from tests.search.rehearsed import house, noise, objective_at

TRAINED = Path(__file__).with_name("trained.json")
RANGE = {"kl.beta": "log(0.001, 100)"}
"""Eleven powers of e, of which accuracy - 0.5 * KL has its hill in two."""
RECIPES = {"default": (100, "constant", 6), "long": (300, "linear", 4)}
"""Updates, schedule and seeds."""
FRESH = 2000
"""First of the repetitions that had no part in choosing a sampler, its start or the curve."""


class Landscape(NamedTuple):
    """An objective over beta, to be searched."""

    mean: Callable[[float], float]
    spread: Callable[[float], float]
    """Standard deviation between seeds."""
    weight: float
    """Of the KL: the closed form's optimum is at this beta."""
    top: float
    """Where the curve itself is highest."""
    space: Mapping[str, str]
    trials: int
    seeds: int = 2

    def regret(self, beta: float) -> float:
        return self.mean(self.top) - self.mean(beta)


def closed_form(spread: float | None) -> Landscape:
    """accuracy - 0.5 * KL by the closed form. spread None: between seeds of the default recipe."""
    between = (lambda _: spread) if spread is not None else _spread("default", 0.5)
    return Landscape(objective_at, between, 0.5, 0.5, RANGE, trials=14)


@cache
def really_trained(weight: float = 1.0) -> Landscape:
    """accuracy - weight * KL as long training gives it: a smooth curve through the means of four
    seeds at eleven betas, and their spread."""
    from scipy.interpolate import CubicSpline

    found = measured("long", weight)
    betas = sorted(found)
    curve = CubicSpline(np.log(betas), [statistics.mean(found[beta]) for beta in betas])
    grid = np.linspace(math.log(betas[0]), math.log(betas[-1]), 2001)
    top = math.exp(grid[np.argmax(curve(grid))])
    return Landscape(
        lambda beta: float(curve(math.log(beta))),
        _spread("long", weight),
        weight,
        top,
        {"kl.beta": f"log({betas[0]}, {betas[-1]})"},
        trials=12,
    )


def measured(recipe: str, weight: float) -> dict[float, list[float]]:
    """Beta -> accuracy - weight * KL of each seed of real training."""
    rows: dict[float, list[float]] = {}
    for beta, _, accuracy, kl in json.loads(TRAINED.read_text())[recipe]:
        rows.setdefault(beta, []).append(accuracy - weight * kl)
    return rows


def train(
    recipe: str, betas: Sequence[float] | None = None, seeds: int | None = None
) -> Iterator[list[float]]:
    """Really trains what trained.json holds of a recipe: [beta, seed, accuracy, KL]."""
    from backends.micro.disk import read_metrics
    from backends.micro.train import run

    steps, schedule, known = RECIPES[recipe]
    with tempfile.TemporaryDirectory() as name:
        (search,) = house(Path(name), space=RANGE).searches
        for beta in betas or measured(recipe, 1.0):
            for cell in search.cells({"kl.beta": beta}, range(seeds or known)):
                place = Path(name) / cell.id
                rate = cell.settings.optimizer.model_copy(update={"schedule": schedule})
                longer = {"num_train_steps": steps, "optimizer": rate}
                changed = {
                    "settings": cell.settings.model_copy(update=longer),
                    "cadence": Cadence(evaluate_every_steps=steps),
                }
                run(
                    cell.model_copy(update=changed),
                    AttemptPaths(place, place / "1", place / "kept"),
                )
                *_, last = read_metrics(place / "1")
                yield [
                    beta,
                    cell.settings.seed,
                    last.values["eval/accuracy_in_domain"],
                    last.values["eval/kl_reverse"],
                ]


def _spread(recipe: str, weight: float) -> Callable[[float], float]:
    found = measured(recipe, weight)
    betas = sorted(found)
    places, sizes = np.log(betas), [statistics.stdev(found[beta]) for beta in betas]
    return lambda beta: float(np.interp(math.log(beta), places, sizes))


def simulated(search: Search, sampler_name: str, repetition: int, over: Landscape) -> SearchOutcome:
    """What a search finds there, in memory: asked and told as the controller does, without cells.
    search: over the landscape's space."""
    import optuna

    changed = {"sampler": sampler_name, "sampler_seed": repetition, "trials": over.trials}
    block = search.tune.block.model_copy(update=changed)
    search = replace(search, tune=replace(search.tune, block=block, seeds=tuple(range(over.seeds))))
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize")
    tried = []
    for number in range(over.trials):
        study.sampler = sampler(block, number)
        asked = study.ask(distributions(search.space))
        beta = search.space[0].value(asked.params["kl.beta"])
        values = {
            seed: (over.mean(beta) + noise(f"{repetition} {beta} {seed}", over.spread(beta)),)
            for seed in range(over.seeds)
        }
        mean = sum(own for (own,) in values.values()) / over.seeds
        study.tell(asked, mean)
        tried.append(
            TrialResult(
                number, "COMPLETE", {"kl.beta": beta}, (mean,), values, (), False, "", 0.0, 0.0
            )
        )
    return SearchOutcome(search, tuple(tried), {}, {})


class Told(NamedTuple):
    """What one search told, judged by the landscape."""

    best: float
    """Regret of the best trial's beta."""
    recommended: float
    """Regret of the recommended beta."""
    holds_top: bool
    """Whether the interval holds the beta at which the curve is highest."""
    holds_closed_form: bool


def observed(found: SearchOutcome, over: Landscape) -> float:
    """Regret of the best trial's beta."""
    assert found.best is not None
    return over.regret(found.best.params["kl.beta"])


def judged(search: Search, kind: str, over: Landscape, repetitions: range) -> Iterator[Told]:
    for repetition in repetitions:
        found = simulated(search, kind, repetition, over)
        curve = found.recommended
        assert curve is not None
        yield Told(
            observed(found, over),
            over.regret(curve.value),
            curve.low <= over.top <= curve.high,
            curve.low <= over.weight <= curve.high,
        )


def sizes(told: list[Told], kind: str) -> dict[str, Any]:
    values = [getattr(one, kind) for one in told]
    return {"mean": statistics.mean(values), "median": statistics.median(values)}
