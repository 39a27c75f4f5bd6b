"""The libraries themselves, asked from tests: the parser of a release, in its own environment."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.adopt.adoption import adoption_of
from lab.libraries import folder
from tests.backends import child
from tests.backends.environments import contract_python, cpu_python


def python_of(library: str, version: str) -> Path:
    """The Python in which the parser of a release runs."""
    made = cpu_python if adoption_of(library).PARSER_IN == "cpu" else contract_python
    return made(library, version)


def ask(
    library: str, version: str, launches: Sequence[object], keys: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """What the parser makes of launches, given as `adoption.py` says: {"values"} or {"error"}.

    keys: of verl, those to answer; None: those that a launch sets.
    """
    question = launches if keys is None else {"launches": launches, "keys": keys}
    command = (python_of(library, version), folder(library) / "resolve.py")
    answers: list[dict[str, Any]] = child.ask(command, question)
    return answers
