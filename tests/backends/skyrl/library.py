"""SkyRL itself, asked from tests: its configuration in an environment of each release."""

import json
import os
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from lab.libraries import folder
from tests.backends import child
from tests.backends.environments import contract_python

HERE = Path(__file__).parent


@cache
def python(version: str) -> Path:
    return contract_python("skyrl", version)


def ask(version: str, launches: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """What SkyRL makes of each launch's arguments: {"values", "options"} or {"error"}."""
    command = (python(version), folder("skyrl") / "resolve.py")
    answers: list[dict[str, Any]] = child.ask(command, [list(argv) for argv in launches])
    return answers


def launch(version: str, argv: Sequence[str], env: dict[str, str]) -> dict[str, Any]:
    """What comes of a launch up to its trainer (ask/launch.py); `argv` begins with the script."""
    done = subprocess.run(
        [python(version), HERE / "ask" / "launch.py", *argv],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **env},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    seen: dict[str, Any] = json.loads(done.stdout.rpartition("ANSWER ")[2])
    return seen
