"""OpenRLHF itself, asked from tests: its parser in an environment of each release."""

from collections.abc import Sequence
from typing import Any

from backends.openrlhf.flags import MODULE
from lab.libraries import folder
from tests.backends.child import ask
from tests.backends.environments import contract_python


def asked_of_library(version: str, launches: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """What the library's own parser makes of each launch, in one process."""
    argvs = [list(argv[argv.index(MODULE) + 1 :]) for argv in launches]
    command = (contract_python("openrlhf", version), folder("openrlhf") / "resolve.py")
    answers: list[dict[str, Any]] = ask(command, argvs)
    return answers
