"""Searches against the closed form: accuracy - 0.5 * KL is best at beta 0.5."""

from pathlib import Path
from typing import Any

import pytest

from orchestrator.records import Cell
from orchestrator.search.results import contests
from tests.search.rehearsed import GOAL, Values, house, noise, theory

OPTIMUM = 0.5


def test_without_noise_the_search_finds_it(tmp_path: Path) -> None:
    (found,) = house(tmp_path, trials=20).run()
    assert found.best.beta == pytest.approx(OPTIMUM, rel=0.25)


def test_a_target_to_be_small_is_best_where_it_is(tmp_path: Path) -> None:
    made = house(tmp_path, trials=8, sampler="random", maximize="", minimize=GOAL)
    (found,) = made.run(lambda cell: {GOAL: 1 / (1 + cell.settings.kl.beta)})
    assert found.best.beta == max(trial.beta for trial in found.measured)


def test_configurations_are_compared_each_at_its_own_best(tmp_path: Path) -> None:
    made = house(
        tmp_path,
        ["k1.reward", "k3.loss"],
        seeds=[0, 1, 2],
        confirm_seeds=[10, 11, 12, 13],
        trials=5,
    )

    def lower(cell: Cell) -> Values:
        worse = 0.2 if cell.settings.kl.label == "k3.loss" else 0.0
        return {GOAL: theory(cell)[GOAL] + noise(cell.id, 0.01) - worse}

    found: Any = made.run(lower)
    (contest,) = contests(found)
    assert contest.fresh
    assert contest.difference.n == 4
    assert 0.1 < (contest.difference.low or 0) < (contest.difference.high or 0) < 0.3
    assert contest.p < 0.01
