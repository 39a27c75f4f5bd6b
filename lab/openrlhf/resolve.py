"""Runs inside an OpenRLHF environment: the library's own parser and checks over many launches.

Standard input: a line for each question, a JSON list of argument lists. Standard output: ANSWER
and a JSON list, one object a launch: {"values": the namespace} or {"error": what it printed}.

The script `openrlhf.cli.train_ppo_ray` runs, with stand-ins for Ray, vLLM and torch (stood_in.py),
up to the first thing that would take a GPU: behind the parser's own checks, and behind those of
train() on nodes and engines.
"""

import contextlib
import io
import json
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

from stood_in import script


class Reached(BaseException):
    """train() is about to start vLLM."""


def stop(*_: object, **__: object) -> None:
    """Stand in for the start of vLLM."""
    raise Reached


def plain(value: object) -> object:
    """Return a namespace as JSON holds it."""
    if isinstance(value, SimpleNamespace) or type(value).__name__ == "Namespace":
        return {key: plain(inner) for key, inner in vars(value).items()}
    return value


def main() -> None:
    """Answer the questions on standard input."""
    parsed: list[object] = []
    strategy = MagicMock()

    def get_strategy(args: object) -> object:
        parsed.append(args)
        return strategy

    run = script(get_strategy, create_vllm_engines=stop)
    for line in sys.stdin:
        answers = []
        for argv in json.loads(line):
            printed = io.StringIO()
            sys.argv = ["train_ppo_ray.py", *argv]
            parsed.clear()
            try:
                with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(printed):
                    run()
            except Reached:
                answers.append({"values": plain(parsed[0])})
            except (SystemExit, Exception) as error:
                answers.append({"error": printed.getvalue() + f"{type(error).__name__}: {error}"})
        sys.stdout.write("ANSWER " + json.dumps(answers) + "\n")
        sys.stdout.flush()


main()
