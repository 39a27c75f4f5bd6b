"""The quiet estimators as code that orch ships into a library's launch.

`orch_quiet_kl.py`, in this folder, is that code: it runs in the library's environment, which has no
orch. It has a KL over the vocabulary, chunk by chunk, and the charge of a KL to earlier tokens. A
backend ships it beside a module of its own, which puts it into the library's trainer.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

MODULE = "orch_quiet_kl"
"""Name of the shipped module."""
OVER_VOCABULARY = ("full", "full_forward", "rb", "rb_k1")
"""Estimators that need the next-token distributions; they have a gradient in a loss."""
IN_REWARD_ONLY = ("k1_to_go",)
"""Estimators of the sampled token. k1's gradient in a loss is noise, so orch ships none there."""
ESTIMATORS: Sequence[str] = (*OVER_VOCABULARY, *IN_REWARD_ONLY)
"""Estimators that the shipped code computes, by their names in the table of estimators."""


@cache
def source() -> str:
    """Return the text of the shipped module."""
    return Path(__file__).with_name(f"{MODULE}.py").read_text(encoding="utf-8")
