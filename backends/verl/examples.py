"""Date a launch that has exactly the keys of one of verl's own shell scripts.

Since April 2025 (0.4.0) `algorithm.use_kl_in_reward` switches the KL in the reward. A launch with
the coefficient and neither switch may be older or newer, and its keys often fit both. examples.json
has every such script of verl's repository, in each version up to August 2026: a hash of its keys ->
[path, first day, "before" or "since" the change]. None of its 118 sets of keys existed both before
and after the change.
"""

import hashlib
import json
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import NamedTuple


class Example(NamedTuple):
    """A script of verl's repository, its first day, and `before` or `since` the change."""

    path: str
    day: str
    side: str


def example(keys: Collection[str]) -> Example | None:
    """Return the script of verl's that gives exactly these keys, or None."""
    row = _examples().get(key_hash(keys))
    return None if row is None else Example(*row)


def key_hash(keys: Collection[str]) -> str:
    """Return the hash that names a set of keys in examples.json."""
    return hashlib.sha256("\n".join(sorted(keys)).encode()).hexdigest()[:12]


@cache
def _examples() -> dict[str, list[str]]:
    path = Path(__file__).with_name("examples.json")
    table: dict[str, list[str]] = json.loads(path.read_text(encoding="utf-8"))
    return table
