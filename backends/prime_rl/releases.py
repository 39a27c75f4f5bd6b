"""The releases of Prime-RL that orch drives, and the keys that each one's own classes accept."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

NAME = "prime_rl"
OLD, CURRENT = "0.5.0", "0.8.0"
VERSIONS = (OLD, CURRENT)
"""The first is what a cell without a version gets: it expresses most."""


@cache
def keys(kind: str, version: str = OLD) -> Mapping[str, tuple[str, object]]:
    """Return the type, in words, and the default of each dotted key.

    Keys name the branch of a union.
    """
    path = Path(__file__).parent / "keys" / f"{version}.json"
    table = json.loads(path.read_text(encoding="utf-8"))[kind]
    return {key: (str(spelled), default) for key, (spelled, default) in table.items()}
