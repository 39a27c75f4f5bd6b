"""Find texts that may hold a launch of a library.

A text without a hint is not read closely: most commands of a script copy files and load modules.
"""

import re
from functools import cache

from orchestrator import plugins
from orchestrator.library.releases import ReleaseMarks

SHARED = r"algorithm\.|use_kl|kl_coef|main_\w+"
"""Words of launches of several libraries."""
STARTS = re.compile(r"\bpython|torchrun|\buv |\bray |\brl |bash|deepspeed|accelerate|-m |\.sh")
"""Text that starts a program."""


@cache
def marks() -> dict[str, ReleaseMarks]:
    """Return the marks of every backend whose launches can be read, by its name."""
    backends = (plugins.load(name) for name in plugins.names())
    return {each.name: each.release_marks for each in backends if each.release_marks is not None}


def titles() -> str:
    """Return the libraries whose launches can be read, as a list in words."""
    *others, last = (plugins.load(name).title for name in marks())
    return f"{', '.join(others)} or {last}" if others else last


@cache
def _hint() -> re.Pattern[str]:
    return re.compile("|".join([SHARED, *(each.hint for each in marks().values())]))


def may_launch(text: str) -> bool:
    """Return True if a text may hold a launch."""
    return _hint().search(text) is not None
