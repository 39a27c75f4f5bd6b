"""What the report says of searches."""

from pathlib import Path

import dashboards
from orchestrator.report import markdown
from orchestrator.search.section import as_json, best_table, panels, report, section
from tests.search.rehearsed import house


def test_the_best_of_each_search_and_their_difference_are_told(tmp_path: Path) -> None:
    made = house(tmp_path, fixed={}, each={"kl": ["k1.reward", "k3.loss"]}, seeds=[0, 1], trials=4)
    found = made.run()
    links = {cell.id: f"run-of-{cell.id}" for cell in made.trained}
    told = section(found, links)
    best, contest, trials = told.tables
    assert [row[0] for row in best.rows] == ["k1.reward", "k3.loss"]
    assert contest.rows[0][0] == "k1.reward − k3.loss"
    assert contest.rows[0][3] == "those that chose"
    assert len(trials.rows) == 8
    assert all(f"run-of-{row[6].split(', ')[0]}" in row[7] for row in trials.rows)
    over_beta, history = panels(found)
    assert [s["name"] for s in over_beta["series"]] == ["k1.reward", "k3.loss"]
    assert history["series"][0]["y"] == sorted(history["series"][0]["y"])
    page = report(made.experiment, found, links)
    assert page.banner
    assert "k1.reward: kl.beta = " in markdown(page)
    assert '"tune"' in dashboards.html(page)


def test_several_objectives_are_told_as_a_front(tmp_path: Path) -> None:
    made = house(
        tmp_path,
        trials=5,
        objectives={"eval/accuracy_in_domain": "maximize", "eval/kl_reverse": "minimize"},
    )
    found = made.run()
    told = section(found)
    assert any("Optuna prunes for one only" in point for point in told.points)
    (front,) = [table for table in told.tables if table.caption.startswith("Pareto front")]
    assert len(front.rows) == 5
    assert panels(found)[-1]["title"] == "Pareto front"
    assert best_table(found).rows[0][3] == "5 on the front"
    assert as_json(found, {})[0]["front"] == [trial.number for trial in found[0].front]


def test_importance_is_told_where_there_is_something_to_tell_apart(tmp_path: Path) -> None:
    space = {"kl.beta": "log(0.01, 10)", "optimizer.weight_decay": "uniform(0, 0.1)"}
    (found,) = house(tmp_path, space=space, trials=12, sampler="random").run()
    assert set(found.importance) == set(space)
    assert found.importance["kl.beta"] > found.importance["optimizer.weight_decay"]
    (table,) = [t for t in section([found]).tables if t.caption.startswith("Importance")]
    assert len(table.rows) == 2


def test_a_search_with_nothing_measured_is_told_as_such(tmp_path: Path) -> None:
    made = house(tmp_path)
    made.controller()
    told = section(made.found())
    assert told.figures == ()
    assert told.tables[0].rows[0][3] == "nothing measured yet"
    assert "nothing measured yet" in report(made.experiment, made.found(), {}).answer
