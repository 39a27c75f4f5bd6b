"""Names in MLflow, and what leaves it with a cell."""

from hypothesis import given
from hypothesis import strategies as st
from tracking_house import House

from orchestrator.runs.operations import prune
from orchestrator.tracking.names import allowed_name


def test_a_pruned_cell_takes_its_run_along(house: House) -> None:
    house.fill()
    house.mirror()
    first = house.cells[0]
    (done,) = prune(house.folder, [house.folder.cell(first)])
    assert done.done
    report = house._replace(cells=house.cells[1:]).mirror()
    assert report.deleted == 1
    now = house.held
    assert f"cell/{first.id}" not in now
    assert len(now) == 1 + 1 + 2
    assert house._replace(cells=house.cells[1:]).mirror().deleted == 0
    house.attempt(first, range(3))
    house.mirror()
    assert f"cell/{first.id}" in house.held


def test_a_cell_that_merely_left_the_spec_stays(house: House) -> None:
    house.fill()
    house.mirror()
    house._replace(cells=house.cells[1:]).mirror()
    assert f"cell/{house.cells[0].id}" in house.held


@given(st.text(min_size=1, max_size=300))
def test_mlflow_takes_every_name(name: str) -> None:
    from mlflow.utils.validation import MAX_ENTITY_KEY_LENGTH, _validate_metric_name

    safe = allowed_name(name)
    _validate_metric_name(safe)
    assert len(safe) <= MAX_ENTITY_KEY_LENGTH


def test_long_names_stay_different() -> None:
    assert allowed_name("x" * 300) != allowed_name("x" * 301)
