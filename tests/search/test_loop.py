"""Asking and telling, on real journals and run directories."""

import math
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import RunFolderError
from orchestrator.records import Cell
from orchestrator.runs.operations import cancel
from orchestrator.runs.plan import plan, tuned_ids
from orchestrator.search.journal import SearchJournal
from orchestrator.search.results import contests
from tests.search.rehearsed import GOAL, Values, house, noise, objective_at, theory, train


def test_every_trial_is_asked_trained_and_told(tmp_path: Path) -> None:
    made = house(tmp_path, seeds=[0, 1], trials=5, parallel=2)
    (found,) = made.run()
    assert len(made.trained) == 10
    assert [t.state for t in found.trials] == ["COMPLETE"] * 5
    for trial in found.trials:
        assert trial.value == pytest.approx(objective_at(trial.beta))
        assert list(trial.seeds) == [0, 1]
    assert tuned_ids(made.folder) == {cell.id for cell in made.trained}


def test_a_finished_search_asks_and_trains_nothing_more(tmp_path: Path) -> None:
    house(tmp_path).run()
    again = house(tmp_path)
    (found,) = again.run()
    assert (len(found.trials), again.trained) == (6, [])
    more = house(tmp_path, trials=8)
    (found,) = more.run()
    assert (len(found.trials), len(more.trained)) == (8, 2)


def test_a_cell_with_a_result_is_told_from_disk(tmp_path: Path) -> None:
    house(tmp_path, name="first").run()
    again = house(tmp_path, name="second")
    (found,) = again.run()
    assert again.trained == []  # the same sampler proposes the same, which is there already
    assert all(trial.seeds for trial in found.trials)


def test_a_stopped_search_goes_on_with_its_trials(tmp_path: Path) -> None:
    made = house(tmp_path, parallel=3)
    started = made.stopped()
    assert len(started) == 3
    (found,) = made.run()
    assert [cell.id for cell in started] == [cell.id for cell in made.trained[:3]]
    assert [t.state for t in found.trials] == ["COMPLETE"] * 6


def test_a_second_controller_is_refused_while_the_first_works(tmp_path: Path) -> None:
    made = house(tmp_path, trials=2)
    made.folder.open()
    with (
        made.journal().controlling(),
        pytest.raises(RunFolderError, match="another orch tune works with"),
        made.journal().controlling(),
    ):
        pass
    assert len(made.run()[0].trials) == 2, "the lock ends with its holder"


def test_a_trial_cut_short_before_it_had_parameters_is_asked_anew(tmp_path: Path) -> None:
    made = house(tmp_path, trials=3)
    made.folder.open()
    journal = made.journal()
    journal.study(made.searches[0]).ask()  # a kill between asking and suggesting leaves this
    (found,) = made.run()
    assert len(found.trials) == 3
    assert all(trial.state == "COMPLETE" for trial in found.trials)


# ---------------------------------------------------------------- what goes wrong


def _one_bad(kind: str) -> Any:
    """A response that fails the second cell it is asked for."""
    count = 0

    def respond(cell: Cell) -> Values:
        nonlocal count
        count += 1
        values = dict(theory(cell))
        if count == 2 and kind == "nan":
            values[GOAL] = math.nan
        if count == 2 and kind == "missing":
            del values[GOAL]
        return values

    return respond


@pytest.mark.parametrize("kind", ["nan", "missing"])
def test_a_trial_without_a_number_fails(kind: str, tmp_path: Path) -> None:
    made = house(tmp_path, trials=4)
    (found,) = made.run(_one_bad(kind))
    bad = found.trials[1]
    assert (bad.state, bad.value) == ("FAIL", None)
    assert f"has no final {GOAL}" in bad.why
    assert [t.state for t in found.trials if t is not bad] == ["COMPLETE"] * 3


def test_a_failed_cell_fails_its_trial_and_the_search_goes_on(tmp_path: Path) -> None:
    made = house(tmp_path, trials=3, seeds=[0, 1])
    one, _ = made.stopped()
    train(made.folder, one, {}, state="failed")
    (found,) = made.run()
    assert found.trials[0].state == "FAIL"
    assert f"{one.slug} ({one.id}) is failed" in found.trials[0].why
    assert [t.state for t in found.trials[1:]] == ["COMPLETE"] * 2


def test_a_cell_that_a_person_cancels_fails_its_trial(tmp_path: Path) -> None:
    made = house(tmp_path, trials=1)
    cancel(made.stopped(), made.folder)
    (found,) = made.run()
    assert found.trials[0].state == "FAIL"
    assert "cancelled by a person" in found.trials[0].why


def test_a_cell_that_run_could_not_end_fails_its_trial(tmp_path: Path) -> None:
    made = house(tmp_path, trials=1)
    assert made.drive(lambda _: True)
    assert "is planned" in made.found()[0].trials[0].why


# ---------------------------------------------------------------- budgets and sharing


def test_the_best_is_trained_again_on_fresh_seeds(tmp_path: Path) -> None:
    made = house(tmp_path, confirm_seeds=[100, 101])
    (found,) = made.run()
    assert list(found.confirmed) == [100, 101]
    fresh = [c for c in made.trained if c.settings.seed >= 100]
    assert {c.settings.kl.beta for c in fresh} == {found.best.beta}
    assert plan(made.experiment.cells, made.folder).orphans == ()


def test_resuming_proposes_what_an_unbroken_search_would(tmp_path: Path) -> None:
    (whole,) = house(tmp_path / "a", trials=8).run()
    house(tmp_path / "b", trials=5).run()
    (resumed,) = house(tmp_path / "b", trials=8).run()
    assert [t.beta for t in resumed.trials] == [t.beta for t in whole.trials]


def test_a_journal_is_looked_at_without_being_made(tmp_path: Path) -> None:
    made = house(tmp_path)
    assert SearchJournal(made.folder, "search").studies() == {}
    assert not made.folder.path.exists()


# ---------------------------------------------------------------- against the closed form

OPTIMUM = 0.5
"""accuracy - 0.5 * KL is best at this beta."""


def test_without_noise_the_search_finds_it(tmp_path: Path) -> None:
    (found,) = house(tmp_path, trials=20).run()
    assert found.best.beta == pytest.approx(OPTIMUM, rel=0.25)


def test_a_target_to_be_small_is_best_where_it_is(tmp_path: Path) -> None:
    made = house(tmp_path, trials=8, maximize="", minimize=GOAL)
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
