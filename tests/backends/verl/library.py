"""verl itself, as far as a machine without a GPU can ask it: Hydra composing the release's own
configuration, and single functions of its source run by the torch at hand."""

import ast
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from lab.libraries import folder
from orchestrator import plugins
from tests.backends.child import ask
from tests.backends.environments import contract_python

VERSIONS = plugins.load("verl").versions

_RESOLVE = folder("verl") / "resolve.py"


def python(version: str) -> Path:
    return contract_python("verl", version)


def compose(
    version: str, launches: Sequence[Sequence[str]], keys: Sequence[str]
) -> list[Mapping[str, Any]]:
    """What verl's own composition makes of each list of overrides: {"values": key -> value}, or
    {"error": sentence}."""
    asked = {"launches": [list(each) for each in launches], "keys": list(keys)}
    answers: list[Mapping[str, Any]] = ask((python(version), _RESOLVE), asked)
    return answers


@cache
def configuration(version: str) -> Mapping[str, Any]:
    """Return the release's whole ppo_trainer as composed, interpolations as they are written."""
    answers: list[Mapping[str, Any]] = ask((python(version), _RESOLVE), {"launches": None})
    return answers[0]


@cache
def root(version: str) -> Path:
    """Where the release's sources lie."""
    (found,) = python(version).parents[1].glob("lib/python*/site-packages/verl")
    return found


def functions(version: str, path: str, names: Sequence[str], within: dict[str, Any]) -> None:
    """Put functions or classes of one of verl's files into `within`, which has the names they use.
    verl cannot be imported without Ray, tensordict and vLLM; its arithmetic needs none of them."""
    tree = ast.parse((root(version) / path).read_text(encoding="utf-8"))
    wanted = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names
    ]
    assert len(wanted) == len(names), f"verl {version} has moved one of {names} out of {path}"
    for node in (each for top in wanted for each in ast.walk(top)):
        if isinstance(node, ast.FunctionDef):
            node.decorator_list, node.returns = [], None
        if isinstance(node, ast.arg):
            node.annotation = None
    module = ast.Module(body=list(wanted), type_ignores=[])
    exec(compile(module, path, "exec"), within)  # noqa: S102  (the library's own file)
