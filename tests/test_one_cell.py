"""docs/one_cell.md names eight functions: each exists, and the named file uses it."""

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "one_cell.md"
ROWS = re.findall(r"^\| (\d) \| `(.+?):(\w+)` \|.*\| `(.+?)` \|$", PAGE.read_text("utf-8"), re.M)


def test_it_is_read_in_minutes() -> None:
    assert [number for number, *_ in ROWS] == list("12345678")
    assert len(PAGE.read_text("utf-8").split()) <= 800


@pytest.mark.parametrize(("_number", "module", "function", "caller"), ROWS)
def test_the_function_is_there_and_is_called(
    _number: str, module: str, function: str, caller: str
) -> None:
    assert callable(getattr(import_module(module), function))
    words = re.findall(r"\w+", (ROOT / caller).read_text("utf-8"))
    assert function in words, f"{caller} does not name {module}.{function}"
