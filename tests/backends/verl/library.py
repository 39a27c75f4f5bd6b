"""verl itself, as far as a machine without a GPU can ask it: Hydra composing the release's own
configuration, and single functions of its source run by the torch at hand."""

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
def root(version: str) -> Path:
    """Where the release's sources lie."""
    (found,) = python(version).parents[1].glob("lib/python*/site-packages/verl")
    return found
