"""How an answer is scored: one text for training rewards and evaluation.

    math_answers   the last box of a response against an answer of MATH
    countdown      an arithmetic expression, as reasoning-gym scores it
    choice         the letter of a multiple-choice question
    exact          the response itself

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
    "math_boxed": ("math_answers", "notation", "judge"),
    "countdown": ("countdown",),
    "exact": ("exact",),
}
"""Rule (`data.reward`) -> its module, then those that the module imports."""


_ENDED = re.compile(r"(?:(?:<[|\uff5c][^<>]*[|\uff5c]>|</s>|<eos>|<end_of_turn>|<pad>)\s*)+\Z")
_TAIL = 200
"""Characters in which the tokens that end a response are looked for."""


def spoken(response: str) -> str:
    """A decoded response without the special tokens that end it."""
    return response[:-_TAIL] + _ENDED.sub("", response[-_TAIL:])


def _of_spoken(reward: Callable[[str, str], float], response: str, label: str) -> float:
    return reward(spoken(response), label)


def reward_function(rule: str) -> Callable[[str, str], float]:
    """`reward(response, label)` of a rule, ready to be called with a response as it was decoded.

    Raises ModuleNotFoundError where the rule needs a package that is not installed.
    """
    module = import_module(f"{__name__}.{MODULES[rule][0]}")
    ready = getattr(module, "ready", None)
    if ready is not None:
        ready()
    return partial(_of_spoken, module.reward)


@cache
def files(rule: str) -> dict[str, str]:
    """The package with all that a rule needs: path -> text, to lie beside what imports it."""
    here = Path(__file__).parent
    names = ("__init__", *MODULES[rule])
    return {
        f"{PACKAGE}/{name}.py": (here / f"{name}.py").read_text(encoding="utf-8") for name in names
    }
