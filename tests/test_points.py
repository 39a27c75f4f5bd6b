"""Metrics of a step held tightly say the same as the mapping they were made of."""

import json
import pickle

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.metrics.points import PointValues

mappings = st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False) | st.integers(-9, 9))


@given(mappings)
def test_it_is_the_mapping_it_was_made_of(plain: dict[str, float]) -> None:
    found = PointValues(plain)
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
