"""Runs inside an OpenRLHF environment: prints ANSWER and its parser's flags, as JSON.

{name: {"kind", "default", "values"}}: a `switch` takes no word, `float x 2` two, most others one;
`values` is there where the parser takes these only.

The script `openrlhf.cli.train_ppo_ray` runs, with stand-ins for what it imports (stood_in.py), up
to the parser's first use.
"""

import argparse
import contextlib
import json
import re
import sys
from typing import Any
from unittest.mock import MagicMock

from stood_in import script


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
    parser: Any = argparse.ArgumentParser
    parser.add_argument, parser.parse_args = recorded, end  # the library's script calls them
    with contextlib.suppress(Described):
        script(MagicMock())()
    sys.stdout.write("ANSWER " + json.dumps(described()) + "\n")


main()
