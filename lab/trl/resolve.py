"""Runs inside a TRL environment: prints ANSWER and what its parser makes of launches, as JSON.

Standard input: a line for each question, [[script, the text of its configuration], ...]. An answer
is `{"values": the options by name}`, or `{"error": what the parser said}` where it refuses.
"""

import dataclasses
import importlib
import json
import os
import sys
import tempfile
from pathlib import Path


def resolved(script: str, text: str) -> dict[str, object]:
    """Return the options that the parser of a script makes of a configuration."""
    name = Path(f"{script}.yaml")
    # only the machine is another: a launch on GPUs is refused where there is none
    name.write_text(text.replace("use_cpu: false", "use_cpu: true"), encoding="utf-8")
    parser = importlib.import_module(f"trl.scripts.{script}").make_parser()
    try:
        parts = parser.parse_args_and_config(args=["--config", str(name)])
    except (Exception, SystemExit) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"values": {k: v for part in parts for k, v in dataclasses.asdict(part).items()}}


def _plain(value: object) -> object:
    return getattr(value, "value", str(value))


def main() -> None:
    """Answer the questions on standard input."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for line in sys.stdin:
            answers = [resolved(*each) for each in json.loads(line)]
            sys.stdout.write("ANSWER " + json.dumps(answers, default=_plain) + "\n")
            sys.stdout.flush()
        os.chdir("/")


main()
