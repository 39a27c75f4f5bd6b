"""Shipped code may be pickled by value: a class made inside a function then finds no global.

cloudpickle takes along the names that functions load; the body of a class loads its names another
way, so theirs are lost, annotations among them.
"""

import builtins
import dis
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import scoring
from tests.backends.shipped import LIBRARIES, planned

OWN = {"__name__", "__module__", "__qualname__", "__annotations__", "__firstlineno__"}


def inner(code: types.CodeType) -> Iterator[types.CodeType]:
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield each


def lost(code: types.CodeType, in_function: bool = False) -> set[str]:
    """Names that a class body inside a function loads by name and does not make itself."""
    is_function = bool(code.co_flags & 0x01)  # CO_OPTIMIZED
    names: set[str] = set()
    if in_function and not is_function:
        steps = list(dis.get_instructions(code))
        stored = {s.argval for s in steps if s.opname == "STORE_NAME"}
        loaded = {s.argval for s in steps if s.opname in ("LOAD_NAME", "LOAD_GLOBAL")}
        names = loaded - stored - OWN - set(vars(builtins))
    for each in inner(code):
        names |= lost(each, in_function or is_function)
    return names


def test_the_check_finds_what_it_looks_for() -> None:
    text = "from typing import Any\ndef f():\n    class A:\n        def g(self, a: Any): ...\n"
    assert lost(compile(text, "a", "exec", dont_inherit=True)) == {"Any"}


@pytest.mark.parametrize("library", LIBRARIES)
def test_no_class_inside_a_function_needs_a_global(library: str, tmp_path: Path) -> None:
    for rule in scoring.MODULES:
        files = planned(library, rule, tmp_path).files
        code = {name: text for name, text in files.items() if name.endswith(".py")}
        assert len(code) > 2
        for name, text in code.items():
            assert lost(compile(text, name, "exec", dont_inherit=True)) == set(), name
