"""Searches against the closed form: accuracy - weight * KL is best at beta = weight."""

import random
from pathlib import Path
from typing import Any

import pytest

from orchestrator.tune.here import search_here
from orchestrator.tune.results import brackets, contests
from orchestrator.types import Cell
from tests.tune.rehearsed import Values, house, objective_at, theory

OPTIMUM = 0.5
SPREAD = 0.03
"""Between seeds of the embedded trainer, of accuracy - 0.5 * KL: measured 0.01 to 0.07."""


def noisy(repetition: int, spread: float = SPREAD) -> Any:
    def response(cell: Cell) -> Values:
        noise = random.Random(f"{repetition} {cell.id}").gauss(0, spread)  # noqa: S311
        values = dict(theory(cell))
        return {**values, "eval/accuracy_in_domain": values["eval/accuracy_in_domain"] + noise}

    return response


def test_the_optimum_is_where_theory_has_it() -> None:
    betas = [0.1 * 1.02**i for i in range(160)]
    assert max(betas, key=objective_at) == pytest.approx(OPTIMUM, rel=0.02)


def test_without_noise_the_search_finds_it(tmp_path: Path) -> None:
    (found,) = house(tmp_path, trials=20).run()
    assert found.best is not None
    assert found.best.params["kl.beta"] == pytest.approx(OPTIMUM, rel=0.1)
    assert brackets(found) == []  # one seed: nothing is said of how well it is known


@pytest.mark.slow
def test_it_beats_random_search_and_brackets_the_optimum(tmp_path: Path) -> None:
    """20 repetitions on one budget: the regret of what each recommends, by the closed form."""
    regrets = {"random": [0.0] * 20, "tpe": [0.0] * 20, "gp": [0.0] * 20}
    inside = 0
    for sampler, regret in regrets.items():
        for i in range(20):
            made = house(tmp_path / f"{sampler}{i}", sampler=sampler, trials=14, sampler_seed=i,
                         seeds=[0, 1], space={"kl.beta": "log(0.001, 100)"})  # fmt: skip
            (found,) = made.run(noisy(i, 0.01))
            assert found.best is not None
            regret[i] = objective_at(OPTIMUM) - objective_at(found.best.params["kl.beta"])
            (bracket,) = brackets(found)
            inside += bracket.low <= OPTIMUM <= bracket.high
            assert not all(bracket.is_open)
    assert inside >= 57
    assert sum(regrets["tpe"]) < 0.8 * sum(regrets["random"]), regrets
    assert sum(regrets["gp"]) < 0.5 * sum(regrets["random"]), regrets
    gains = [b - a for a, b in zip(regrets["gp"], regrets["random"], strict=True)]
    assert sum(gain > 0 for gain in gains) >= 15, gains  # by chance: 2 in 100


def test_configurations_are_compared_each_at_its_own_best(tmp_path: Path) -> None:
    made = house(tmp_path, fixed={}, each={"kl": ["k1.reward", "k3.loss"]}, seeds=[0, 1, 2],
                 confirm_seeds=[10, 11, 12, 13], trials=5)  # fmt: skip
    response = noisy(0, 0.01)

    def lower(cell: Cell) -> Values:
        values = dict(response(cell))
        if cell.settings.kl.label == "k3.loss":
            values["eval/accuracy_in_domain"] -= 0.2
        return values

    found = made.run(lower)
    (contest,) = contests(found)
    assert contest.fresh
    assert contest.difference.n == 4
    low, high = contest.difference.low, contest.difference.high
    assert low is not None
    assert high is not None
    assert 0.1 < low < high < 0.3
    assert contest.p < 0.01


@pytest.mark.slow
def test_real_training_agrees_with_theory(tmp_path: Path) -> None:
    """The embedded trainer, end to end: the bracket holds the optimum and leaves both ends out."""
    made = house(tmp_path, trials=7, seeds=[0, 1], sampler="gp", parallel=2,
                 space={"kl.beta": "log(0.02, 10)"})  # fmt: skip
    assert search_here(made.controller())
    (found,) = made.found()
    assert found.best is not None
    (bracket,) = brackets(found)
    assert bracket.low < OPTIMUM < bracket.high
    assert bracket.low < found.best.params["kl.beta"] < bracket.high
    assert not all(bracket.is_open)
