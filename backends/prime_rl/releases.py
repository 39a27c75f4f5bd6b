"""The releases of Prime-RL that orch drives, and the keys that each one's own classes accept."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

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
