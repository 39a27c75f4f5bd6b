"""Recognise Prime-RL, and its release, in the text of a launch."""

import re

from orchestrator.library.releases import ReleaseFile, ReleaseMarks

TAU = "prime_rl kl_tau"
"""A key of a launch's versions that is no release: the default of kl_tau in Prime-RL's own source.
The default changed between two releases, and checkouts are of commits between them."""
_TAU = re.compile(
    r"\bkl_tau\s*:[^\n]*?(?:\]\s*=\s*|Field\(\s*(?:default\s*=\s*)?)([\d.]+(?:e-?\d+)?)"
)
_SOURCES = (
    "packages/prime-rl-configs/src/prime_rl/configs/trainer.py",
    "src/prime_rl/configs/trainer.py",
    "src/prime_rl/trainer/rl/config.py",
)

MARKS = ReleaseMarks(
    hint=r"prime.?rl|zeroband|\brl @|\buv run (?:rl|trainer)\b",
    aliases=("prime-rl",),
    repositories=("prime-rl",),
    files=tuple(ReleaseFile(TAU, path, pattern=_TAU) for path in _SOURCES),
)
