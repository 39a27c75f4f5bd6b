"""Metrics of a step held tightly say the same as the mapping they were made of."""

import json
import pickle

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.metrics.points import PointValues, compact, stretches
from orchestrator.records import MetricPoint

mappings = st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False) | st.integers(-9, 9))


@given(mappings)
def test_it_is_the_mapping_it_was_made_of(plain: dict[str, float]) -> None:
    found = compact(MetricPoint(1, 2.0, plain)).values
    assert isinstance(found, PointValues)
    assert found == plain
    assert plain == found
    assert (list(found), list(found.values())) == (list(plain), list(plain.values()))
    assert list(found.items()) == list(plain.items())
    assert {**found} == plain
    assert all(found[name] == found.get(name) == value for name, value in plain.items())
    assert ("no such name" in found, found.get("no such name")) == (False, None)
    assert pickle.loads(pickle.dumps(found)) == plain  # noqa: S301  (our own bytes)
    assert json.dumps(dict(found), sort_keys=True) == json.dumps(
        {name: float(value) for name, value in plain.items()}, sort_keys=True
    )


def test_what_is_no_number_is_left_as_it_is() -> None:
    for values in ({"a": None}, {"a": "1"}, {"a": 10**400}):
        point = MetricPoint(1, 2.0, values)  # type: ignore[arg-type]  # values of no number, on purpose
        assert compact(point) is point


def test_stretches_are_the_points_in_order() -> None:
    points = [
        MetricPoint(1, 1.0, {"b": 1.0, "a": 2.0}),
        compact(MetricPoint(2, 1.5, {"b": 3.0, "a": 4.0})),
        MetricPoint(3, 2.0, {"b": 5.0}),
        MetricPoint(5, 2.0, {}),
        MetricPoint(6, 3.0, {"b": 6.0, "a": 7.0}),
    ]
    parts = list(stretches(points))
    assert [part.names for part in parts] == [("b", "a"), ("b",), (), ("b", "a")]
    assert [point for part in parts for point in part.points] == points
    rows = [dict(zip(p.names, row, strict=True)) for p in parts for row in p.values.tolist()]
    assert rows == [dict(point.values) for point in points]
