"""Any value of a cell comes back from the words in which verl and SkyRL are told it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.skyrl import overrides as skyrl
from backends.verl import overrides as verl

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS


@given(st.recursive(VALUES, lambda inner: st.lists(inner, max_size=3), max_leaves=4))
def test_any_value_comes_back_through_hydras_own_grammar(value: object) -> None:
    assert verl.read(verl.write("a.b", value)) == ("a.b", value)


@pytest.mark.parametrize(
    "text", ["", "null", "True", "1e5", "0.9.1", " a", "a,b", "${x}", "\\", 'a\\"', "#no: {x}"]
)
def test_text_stays_text(text: str) -> None:
    assert verl.read(verl.write("+a", text)) == ("a", text)
    assert skyrl.read([skyrl.write("a", text), skyrl.write("b", [text])]) == {
        "a": text,
        "b": [text],
    }


@given(TEXTS | st.floats(allow_nan=False, allow_infinity=False) | st.none() | st.booleans())
def test_any_value_comes_back_from_omegaconfs_dotlist(value: object) -> None:
    assert skyrl.read([skyrl.write("a.b", value)]) == {"a.b": value}


def test_a_mapping_and_a_number_without_end() -> None:
    assert verl.read(verl.write("a", {"eps": 1e-8})) == ("a", {"eps": 1e-8})
    assert verl.read(verl.write("a", math.inf)) == ("a", math.inf)
