"""How an answer is scored: one text for training rewards and evaluation.

    math_answers   the last box of a response against an answer of MATH
    countdown      an arithmetic expression, as reasoning-gym scores it
    choice         the letter of a multiple-choice question
    exact          the response itself
    gym            any data set of reasoning-gym, by its own scorer
    own            a function in a file of the user's

`reward_function` is what every library's launch calls: some libraries decode a response with the
tokens that end it and some without, so it leaves those out (`spoken`) before a rule sees the text.

These modules need the standard library and, for mathematics, math-verify. A backend copies them
as they are into a launch (`files`), because orch is not installed where trainers run; so they keep
to Python 3.10. Each rule's module has `reward(response, label)`, where `label` is text.
"""

import re
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from pathlib import Path

PACKAGE = "orch_scoring"
"""Name of this package where it was copied to."""
MODULES: dict[str, tuple[str, ...]] = {
    "math_boxed": ("math_answers", "notation", "units", "magnitude", "judge", "algebra"),
    "countdown": ("countdown",),
    "exact": ("exact",),
    "reasoning_gym": ("gym",),
}
"""Rule (`data.reward`) -> its module, then those that the module imports. A rule with `@` is a file
of the user's own: `my_reward.py:score@<digest of the file>`."""

VERSIONS: dict[str, int] = {"math_boxed": 2}
"""Rule -> its version, part of a cell's id. A rule that is not here has version 1. Raise it with a
change that gives some response another reward: cells trained with the old one are other cells."""


def is_own(rule: str) -> bool:
    """Return True for a rule that is a file of the user's own."""
    return "@" in rule


_ENDED = re.compile(r"(?:(?:<[|\uff5c][^<>]*[|\uff5c]>|</s>|<eos>|<end_of_turn>|<pad>)\s*)+\Z")
_TAIL = 200
"""Characters in which the tokens that end a response are looked for."""


def spoken(response: str) -> str:
    """Return a decoded response without the special tokens that end it."""
    return response[:-_TAIL] + _ENDED.sub("", response[-_TAIL:])


def answered(response: str) -> str:
    """Return what follows a response's reasoning: nothing where a `<think>` was never ended."""
    opened, ended = response.rfind("<think>"), response.rfind("</think>")
    return "" if opened > ended else response[ended + len("</think>") :] if ended >= 0 else response


def _of_spoken(reward: Callable[[str, str], float], response: str, label: str) -> float:
    return reward(spoken(response), label)


def reward_function(rule: str) -> Callable[[str, str], float]:
    """Return `reward(response, label)` of a rule, to be called with a response as it was decoded.

    Raise ModuleNotFoundError where the rule needs a package that is not installed.
    """
    if is_own(rule):
        own = import_module(f"{__name__}.own")
        return partial(_of_spoken, own.reward_of(rule))
    module = import_module(f"{__name__}.{MODULES[rule][0]}")
    ready = getattr(module, "ready", None)
    if ready is not None:
        ready()
    return partial(_of_spoken, module.reward)


@cache
def files(rule: str, own_code: str = "") -> dict[str, str]:
    """Return the package with all that a rule needs: path -> text, to lie beside its importer.

    own_code: the text of the user's file, for a rule that is one.
    """
    folder = Path(__file__).parent
    names = ("__init__", *(("own",) if is_own(rule) else MODULES[rule]))
    texts = {
        f"{PACKAGE}/{name}.py": (folder / f"{name}.py").read_text(encoding="utf-8")
        for name in names
    }
    return texts | ({f"{PACKAGE}/own_code.py": own_code} if is_own(rule) else {})
