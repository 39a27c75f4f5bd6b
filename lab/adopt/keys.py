"""The keys of a release, as its own parser says them."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from orchestrator.errors import EnvironmentFault
from orchestrator.library.key_tables import Option, Options

ANSWER = "ANSWER "


def options_of(python: Path, script: Path, source: Path | None = None) -> Options:
    """Return the keys that a release says it has.

    python: of an environment of the release. script: prints ANSWER and the keys as JSON there.
    source: the folder above the package, where the environment is of another release. Raise
    EnvironmentFault, with the last line of what the release said, if it does not answer.
    """
    plain = ask(python, script, source)
    return {
        key: Option(
            facts["kind"],
            facts["default"],
            tuple(facts.get("values", ())),
        )
        for key, facts in plain.items()
    }


def ask(python: Path, script: Path, source: Path | None = None, given: str = "") -> Any:
    """Return what a script prints after ANSWER, in an environment of the library.

    given: its standard input. Raise EnvironmentFault as `options_of` does.
    """
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    more = {} if source is None else {"PYTHONPATH": str(source)}
    done = subprocess.run(
        [python, script],
        input=given,
        capture_output=True,
        text=True,
        check=False,
        env={**plain, **more, "HF_HUB_OFFLINE": "1"},
    )
    if done.returncode or ANSWER not in done.stdout:
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise EnvironmentFault(f"{script.name} found no answer in {python}, which said: {last}")
    return json.loads(done.stdout.rpartition(ANSWER)[2])
