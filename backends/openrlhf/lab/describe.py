"""Runs inside an OpenRLHF environment: prints ANSWER and its parser's flags, as JSON.

{name: {"kind", "default", "values"}}: a `switch` takes no word, `float x 2` two, most others one;
`values` is there where the parser takes these only.

`openrlhf.cli.train_ppo_ray` builds its parser under `if __name__ == "__main__"`: the file is run as
that, with stand-ins for what it imports, up to the parser's first use.
"""

import argparse
import contextlib
import importlib.util
import json
import re
import sys
import types
from pathlib import Path
from typing import Any
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


class Described(BaseException):
    """The parser is complete."""


ACTIONS: list[argparse.Action] = []
add_argument = argparse.ArgumentParser.add_argument


def recorded(parser: argparse.ArgumentParser, *args: Any, **options: Any) -> argparse.Action:
    """Add a flag to a parser, and keep it."""
    ACTIONS.append(add_argument(parser, *args, **options))
    return ACTIONS[-1]


def end(*_: object, **__: object) -> Any:
    """End the script in place of parsing."""
    raise Described


def described() -> dict[str, object]:
    """Return what is known of each flag, by its name."""
    flags: dict[str, object] = {}
    for action in ACTIONS:
        if action.dest == "help":
            continue
        of_the_hour = re.search(r"_\d{4}T\d\d:\d\d$", str(action.default))
        facts = {"kind": kind(action), "default": None if of_the_hour else action.default}
        if action.choices is not None:
            facts["values"] = list(action.choices)
        flags.update({name.removeprefix("--"): facts for name in action.option_strings})
    return flags


def kind(action: argparse.Action) -> str:
    """Return the kind of a flag."""
    if action.nargs == 0:
        return "switch"
    name = getattr(action.type, "__name__", "str")
    return name if action.nargs is None else f"{name} x {action.nargs}"


def main() -> None:
    """Run the script up to its parser, and print its flags."""
    spec = importlib.util.find_spec("openrlhf")
    (folder,) = (spec and spec.submodule_search_locations) or ()
    package = Path(folder)
    for name in STAND_INS:
        sys.modules[name] = MagicMock()
    utils = types.ModuleType("openrlhf.utils")
    utils.__path__ = [str(package / "utils")]
    utils.get_strategy = MagicMock()
    sys.modules["openrlhf.utils"] = utils
    argparse.ArgumentParser.add_argument = recorded  # type: ignore[method-assign]  # the library calls it
    argparse.ArgumentParser.parse_args = end  # type: ignore[method-assign]  # likewise
    script = package / "cli" / "train_ppo_ray.py"
    code = compile(script.read_text(encoding="utf-8"), str(script), "exec")
    with contextlib.suppress(Described):
        exec(code, {"__name__": "__main__"})  # noqa: S102  (the library is what is asked)
    sys.stdout.write("ANSWER " + json.dumps(described()) + "\n")


main()
