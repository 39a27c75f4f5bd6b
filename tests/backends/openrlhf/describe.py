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


def kind(action: argparse.Action) -> str:
    if action.nargs == 0:
        return "switch"
    name = getattr(action.type, "__name__", "str")
    return name if action.nargs is None else f"{name} x {action.nargs}"


def main() -> None:
    spec = importlib.util.find_spec("openrlhf")
    assert spec is not None
    assert spec.submodule_search_locations
    package = Path(spec.submodule_search_locations[0])
    for name in STAND_INS:
        sys.modules[name] = MagicMock()
    utils = types.ModuleType("openrlhf.utils")
    utils.__path__ = [str(package / "utils")]
    utils.get_strategy = MagicMock()
    sys.modules["openrlhf.utils"] = utils
    flags: dict[str, object] = {}

    def describe(parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        for action in parser._actions:
            if action.dest == "help":
                continue
            of_the_hour = re.search(r"_\d{4}T\d\d:\d\d$", str(action.default))
            default = None if of_the_hour else action.default
            facts = {"kind": kind(action), "default": default}
            if action.choices is not None:
                facts["values"] = list(action.choices)
            flags.update({name.removeprefix("--"): facts for name in action.option_strings})
        raise Described

    argparse.ArgumentParser.parse_args = describe  # type: ignore[method-assign, assignment]  # the library calls it: it describes in place of parsing
    script = package / "cli" / "train_ppo_ray.py"
    code = compile(script.read_text(encoding="utf-8"), str(script), "exec")
    with contextlib.suppress(Described):
        exec(code, {"__name__": "__main__"})  # noqa: S102  (what a test of ours asks)
    print("ANSWER " + json.dumps(flags))


main()
