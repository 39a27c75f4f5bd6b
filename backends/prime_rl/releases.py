"""The releases of Prime-RL: those that orch drives, the keys of each, and how a text shows one."""

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from orchestrator.library.release_marks import OwnHooks, ReleaseFile, ReleaseMarks

NAME = "prime_rl"
OLD, CURRENT = "0.5.0", "0.8.0"
VERSIONS = (OLD, CURRENT)
"""Releases that orch drives. Cells without a version get the first, which trains the most cells."""


@cache
def keys(kind: str, version: str = OLD) -> Mapping[str, tuple[str, object]]:
    """Return dotted key -> its type in words, and its default.

    Keys name the branch of a union.
    """
    path = Path(__file__).parent / "keys" / f"{version}.json"
    table = json.loads(path.read_text(encoding="utf-8"))[kind]
    return {key: (str(spelled), default) for key, (spelled, default) in table.items()}


TAU_DEFAULT = "prime_rl kl_tau"
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
    hooks=OwnHooks(
        packages=("prime_rl", "zeroband"),
        paths={"loss.import_path": "loss", "advantage.import_path": "advantage"},
        blind=("advantage",),
    ),
    hint=r"prime.?rl|zeroband|\brl @|\buv run (?:rl|trainer)\b",
    aliases=("prime-rl",),
    repositories=("prime-rl",),
    files=tuple(ReleaseFile(TAU_DEFAULT, path, pattern=_TAU) for path in _SOURCES),
)
