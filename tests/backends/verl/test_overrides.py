import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.verl.overrides import read, write

_numbers = st.integers() | st.floats(allow_nan=False)
_values = st.none() | st.booleans() | _numbers | st.text(max_size=20)


@given(st.recursive(_values, lambda inner: st.lists(inner, max_size=3), max_leaves=4))
def test_any_value_comes_back_through_hydras_own_grammar(value: object) -> None:
    assert read(write("a.b", value)) == ("a.b", value)


@pytest.mark.parametrize(
    "text", ["", "null", "True", "1e5", "0.9.1", " a", "a,b", "${x}", "\\", 'a\\"']
)
def test_text_stays_text(text: str) -> None:
    assert read(write("+a", text)) == ("a", text)


def test_a_mapping_and_a_number_without_end() -> None:
    assert read(write("a", {"eps": 1e-8})) == ("a", {"eps": 1e-8})
    assert read(write("a", math.inf)) == ("a", math.inf)


@pytest.mark.parametrize("text", ["a", "a=[", "~a", "a=1,2"])
def test_what_is_no_single_override_is_told(text: str) -> None:
    with pytest.raises(ValueError, match=r"override|value"):
        read(text)
