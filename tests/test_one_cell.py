"""docs/one_cell.md names eight functions: each exists, and the named file calls it."""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "one_cell.md"
ROWS = re.findall(r"^\| (\d) \| `(.+?):(\w+)` \|.*\| `(.+?)` \|$", PAGE.read_text("utf-8"), re.M)


def called(file: Path) -> set[str]:
    """`module:function` of every call in a file of what it imports."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for each in node.names:
                names[each.asname or each.name] = f"{node.module}.{each.name}"
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            *within, name = ast.unparse(node.func).split(".")
            whole = ".".join([names.get(within[0], within[0]), name]) if within else names.get(name)
            module, _, function = (whole or "").rpartition(".")
            found.add(f"{module}:{function}")
    return found


def test_it_is_read_in_minutes() -> None:
    assert [number for number, *_ in ROWS] == list("12345678")
    assert len(PAGE.read_text("utf-8").split()) <= 800


@pytest.mark.parametrize(("_number", "module", "function", "caller"), ROWS)
def test_the_function_is_there_and_is_called(
    _number: str, module: str, function: str, caller: str
) -> None:
    wanted = getattr(import_module(module), function)
    places = (each.partition(":") for each in called(ROOT / caller))
    own = [at for at, _, name in places if name == function and at.startswith("orchestrator")]
    found = [getattr(import_module(at), function, None) for at in own]
    assert wanted in found, f"{caller} does not call {module}.{function}"
