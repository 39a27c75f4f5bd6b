"""Runs inside an OpenRLHF environment: the library's own parser and checks over many launches.

Standard input: a line for each question, a JSON list of argument lists. Standard output: ANSWER
and a JSON list, one object a launch: {"values": the namespace, "said": what it printed}, or
{"error": what it printed}.

`openrlhf.cli.train_ppo_ray` builds its parser under `if __name__ == "__main__"`, so the file is run
as that, with stand-ins for Ray, vLLM and torch, up to the first thing that would take a GPU: behind
the parser's own checks, and behind those of train() on nodes and engines.
"""

import contextlib
import importlib.util
import io
import json
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

STAND_INS = (
    "ray",
    "ray.util",
    "ray.util.placement_group",
    "openrlhf.trainer",
    "openrlhf.trainer.ray",
    "openrlhf.trainer.ray.launcher",
    "openrlhf.trainer.ray.ppo_actor",
    "openrlhf.trainer.ray.ppo_critic",
)


class Reached(BaseException):
    """train() is about to start vLLM."""


def stop(*_: object, **__: object) -> None:
    """Stand in for the start of vLLM."""
    raise Reached


def package() -> Path:
    """Return the folder of the library's source."""
    spec = importlib.util.find_spec("openrlhf")
    (folder,) = (spec and spec.submodule_search_locations) or ()
    return Path(folder)


def stand_in(parsed: list[object]) -> None:
    """Put modules that the script imports in place, without what they import."""
    for name in STAND_INS:
        sys.modules[name] = MagicMock()
    sys.modules["openrlhf.trainer.ray"].create_vllm_engines = stop
    utils = types.ModuleType("openrlhf.utils")
    utils.__path__ = [str(package() / "utils")]  # openrlhf.utils.config is the real one
    strategy = MagicMock()
    utils.get_strategy = lambda args: (parsed.append(args), strategy)[1]
    sys.modules["openrlhf.utils"] = utils


def plain(value: object) -> object:
    """Return a namespace as JSON holds it."""
    if isinstance(value, SimpleNamespace) or type(value).__name__ == "Namespace":
        return {key: plain(inner) for key, inner in vars(value).items()}
    return value


def main() -> None:
    """Answer the questions on standard input."""
    parsed: list[object] = []
    stand_in(parsed)
    script = package() / "cli" / "train_ppo_ray.py"
    code = compile(script.read_text(encoding="utf-8"), str(script), "exec")
    for line in sys.stdin:
        answers = []
        for argv in json.loads(line):
            printed = io.StringIO()
            sys.argv = [str(script), *argv]
            parsed.clear()
            try:
                with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(printed):
                    exec(code, {"__name__": "__main__"})  # noqa: S102  (the library is what is asked)
            except Reached:
                answers.append({"values": plain(parsed[0]), "said": printed.getvalue()})
            except (SystemExit, Exception) as error:
                answers.append({"error": printed.getvalue() + f"{type(error).__name__}: {error}"})
        sys.stdout.write("ANSWER " + json.dumps(answers) + "\n")
        sys.stdout.flush()


main()
