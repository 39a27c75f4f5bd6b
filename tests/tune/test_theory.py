"""Searches against the closed form: accuracy - weight * KL is best at beta = weight."""

from pathlib import Path
from typing import Any

import pytest

from orchestrator.tune.fit import optimum
from orchestrator.tune.here import search_here
from orchestrator.tune.results import brackets, contests
from orchestrator.types import Cell
from tests.tune.rehearsed import RANGE, Values, house, noise, objective_at, simulated, theory

OPTIMUM = 0.5
SPREAD = 0.03
"""Between seeds of the embedded trainer, of accuracy - 0.5 * KL: measured 0.01 to 0.07."""


def noisy(repetition: int, spread: float = SPREAD) -> Any:
    def response(cell: Cell) -> Values:
        values = dict(theory(cell))
        off = noise(f"{repetition} {cell.id}", spread)
        return {**values, "eval/accuracy_in_domain": values["eval/accuracy_in_domain"] + off}

    return response


def test_the_optimum_is_where_theory_has_it() -> None:
    betas = [0.1 * 1.02**i for i in range(160)]
    assert max(betas, key=objective_at) == pytest.approx(OPTIMUM, rel=0.02)


def test_without_noise_the_search_finds_it(tmp_path: Path) -> None:
    (found,) = house(tmp_path, trials=20).run()
    assert found.best is not None
    assert found.best.params["kl.beta"] == pytest.approx(OPTIMUM, rel=0.1)
    assert brackets(found) == []  # one seed: nothing is said of how well it is known


@pytest.mark.parametrize(("kind", "spread", "share", "wins"), [
    ("tpe", 0.01, 0.5, 15), ("tpe", 0.03, 0.5, 15),
])  # fmt: skip
def test_it_beats_random_search_and_says_where_the_optimum_is(
    kind: str, spread: float, share: float, wins: int, tmp_path: Path
) -> None:
    """20 repetitions of 14 trials with two seeds: the regret, by the closed form, of the value that
    is recommended, against the best value that random search observed. 15 wins of 20 are had by
    chance in 2 of 100. With more noise, or against random search with the same curve, it is less:
    benchmarks/tune.py measures that."""
    (search,) = house(tmp_path, space=RANGE).searches
    peer, ours, inside = [], [], 0
    for i in range(20):
        random_best = simulated(search, "random", i, spread).best
        told = simulated(search, kind, i, spread)
        assert random_best is not None
        assert told.recommended is not None
        peer.append(objective_at(OPTIMUM) - objective_at(random_best.params["kl.beta"]))
        ours.append(objective_at(OPTIMUM) - objective_at(told.recommended.value))
        inside += told.recommended.low <= OPTIMUM <= told.recommended.high
        (bracket,) = brackets(told)
        assert bracket.low <= OPTIMUM <= bracket.high
    assert sum(a < b for a, b in zip(ours, peer, strict=True)) >= wins, (ours, peer)
    assert sum(ours) < share * sum(peer)
    assert inside >= 17  # 0.95 of 20 are 19; 17 or more in 98 of 100


def test_a_curve_finds_a_hill_in_noise_and_says_how_well() -> None:
    places = [i / 15 for i in range(16)]
    hits = 0
    for i in range(40):
        values = [[-(4 * (x - 0.4) ** 2) + noise(f"{i} {x} {s}", 0.1) for s in range(2)]
                  for x in places]  # fmt: skip
        at, low, high, height = optimum(places, values)
        assert at == pytest.approx(0.4, abs=0.12)
        assert height == pytest.approx(0, abs=0.12)
        hits += low <= 0.4 <= high
    assert hits >= 34


def test_a_curve_without_noise_or_without_a_hill() -> None:
    places = [i / 7 for i in range(8)]
    at, low, high, _ = optimum(places, [[-((x - 0.6) ** 2)] * 2 for x in places])
    assert low <= at <= high
    assert at == pytest.approx(0.6, abs=0.03)
    flat = optimum(places, [[noise(f"{x} {s}", 1) for s in range(2)] for x in places])
    assert flat[2] - flat[1] > 0.5, "nothing is known of where it is best"


@pytest.mark.parametrize("change", [
    {"trials": 4}, {"space": {"kl.beta": [0.1, 0.2]}}, {"seeds": [0], "trials": 2},
    {"objectives": {"eval/accuracy_in_domain": "maximize", "eval/kl_reverse": "minimize"}},
])  # fmt: skip
def test_no_curve_where_there_is_nothing_to_fit(change: dict[str, Any], tmp_path: Path) -> None:
    (found,) = house(tmp_path, **{"trials": 6, **change}).run()
    assert found.recommended is None


def test_a_target_to_be_small_is_recommended_where_it_is(tmp_path: Path) -> None:
    (found,) = house(tmp_path, trials=8, sampler="qmc",
                     objectives={"eval/kl_reverse": "minimize"}).run()  # fmt: skip
    told = found.recommended
    assert told is not None
    assert told.value == max(trial.params["kl.beta"] for trial in found.measured)
    assert told.expected == pytest.approx(min(t.values[0] for t in found.measured if t.values),
                                          abs=0.02)  # fmt: skip


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
    """The embedded trainer, end to end, trained to near its optimum: accuracy - KL is best at
    beta 1. The bracket holds that. The curve is of what training reached, which keeps a little
    below the closed form: its top was measured at 1.3 [1.1, 1.5]."""
    made = house(tmp_path, trials=8, seeds=[0, 1], sampler="gp", parallel=2,
                 space={"kl.beta": "log(0.02, 10)"},
                 objectives={"eval/accuracy_in_domain - eval/kl_reverse": "maximize"},
                 fixed={"kl": "k1.reward", "num_train_steps": 375,
                        "optimizer.schedule": "linear"})  # fmt: skip
    assert search_here(made.controller())
    (found,) = made.found()
    assert found.best is not None
    (bracket,) = brackets(found)
    assert not any(bracket.is_open)
    assert bracket.low < 1.0 < bracket.high
    assert found.recommended is not None
    assert 0.5 < found.recommended.value < 2
    missed = objective_at(1.0, 1.0) - objective_at(found.recommended.value, 1.0)
    assert 0 <= missed < 0.01
