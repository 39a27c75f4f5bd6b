"""What MLflow allows, asked of MLflow's own validation."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.tracking.names import (
    allowed_name,
    run_names,
)


@given(st.text(min_size=1, max_size=300))
def test_mlflow_takes_every_name(name: str) -> None:
    from mlflow.utils.validation import MAX_ENTITY_KEY_LENGTH, _validate_metric_name

    safe = allowed_name(name)
    _validate_metric_name(safe)
    assert len(safe) <= MAX_ENTITY_KEY_LENGTH


def test_long_names_stay_different() -> None:
    assert allowed_name("x" * 300) != allowed_name("x" * 301)


def test_names_of_runs_fit_mlflows_column(synthetic: Any) -> None:
    records = synthetic.grid({"k1.reward": [0.5] * 2}).records
    cells = [
        r.cell.model_copy(update={"axes": {"note": f"{'x' * 300}{r.cell.id}"}}) for r in records
    ]
    names = run_names(cells)
    assert all(len(name) <= 250 for name in names.values())
    assert len(set(names.values())) == len(cells)
