"""Syntax trees of many files, for tests that read source."""

import ast
import gc
from collections.abc import Iterable
from pathlib import Path


def parsed(paths: Iterable[Path]) -> dict[Path, ast.Module]:
    """Return each file's syntax tree.

    The garbage collector rests meanwhile: it would look at every node again and again, which
    takes longer than the parser.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        return {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    finally:
        if was_on:
            gc.enable()
