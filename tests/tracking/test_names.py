"""What MLflow allows, asked of MLflow's own validation."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.metrics.names import METRICS
from orchestrator.tracking.names import (
    MAX_PARAM,
    MAX_TAG,
    allowed_name,
    param_text,
    run_names,
    tag_text,
)


@given(st.text(min_size=1, max_size=300))
def test_mlflow_takes_every_name(name: str) -> None:
    from mlflow.utils.validation import MAX_ENTITY_KEY_LENGTH, _validate_metric_name

    safe = allowed_name(name)
    _validate_metric_name(safe)
    assert len(safe) <= MAX_ENTITY_KEY_LENGTH


def test_canonical_names_stay_and_at_is_spelled_out() -> None:
    assert [allowed_name(name) for name in METRICS] == list(METRICS)
    assert allowed_name("eval/math500/mean@32") == "eval/math500/mean_at_32"
    assert allowed_name("kl.k3+") == "kl.k3_x2b"
    assert allowed_name("../a//b") == "__/a/_/b"


def test_long_names_stay_different() -> None:
    assert allowed_name("x" * 300) != allowed_name("x" * 301)


@given(st.text(max_size=20), st.integers(0, 9000))
def test_texts_fit_and_are_whole_when_they_can_be(text: str, length: int) -> None:
    long = text + "z" * length
    for cut, limit in ((param_text(long), MAX_PARAM), (tag_text(long), MAX_TAG)):
        assert len(cut) <= limit
        assert cut == long if len(long) <= limit else cut.endswith("characters in all)")


def test_names_of_runs_fit_mlflows_column(synthetic: Any) -> None:
    records = synthetic.grid({"k1.reward": [0.5] * 2}).records
    cells = [
        r.cell.model_copy(update={"axes": {"note": f"{'x' * 300}{r.cell.id}"}}) for r in records
    ]
    names = run_names(cells)
    assert all(len(name) <= 250 for name in names.values())
    assert len(set(names.values())) == len(cells)
