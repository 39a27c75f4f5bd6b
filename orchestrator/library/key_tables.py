"""The tables of keys of a library that is only read: one data file, every release in it.

    {"versions": [...], "keys": {key: [[first, last, kind, default, [value, ...]], ...]},
     "passed": [key, ...]}

`first` and `last` are indices of `versions`. A key has several entries if its type, default or
values changed between releases. `passed` lists keys that another program's parser takes; only their
names are known.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from orchestrator.library.manifest import ReleaseTable
from orchestrator.library.releases import merged_table, nearest
from orchestrator.library.source_keys import UNREAD, KeyFact


@dataclass(frozen=True, slots=True, eq=False)
class KeyTables:
    """The tables of all releases of one library, the oldest first."""

    versions: Sequence[str]
    facts: tuple[Mapping[str, KeyFact], ...]
    passed: frozenset[str]
    added: tuple[str, ...] = ()
    """Prefixes of keys that a launch may add."""

    def fitting(self, keys: Iterable[str]) -> tuple[str, tuple[str, ...]]:
        """Return the newest release that lacks the fewest of these keys, and the deciding keys."""
        given = list(keys)
        known = [key for key in given if any(key in each for each in self.facts)]
        telling = tuple(key for key in known if not all(key in each for each in self.facts))
        lacking = [sum(key not in each for key in telling) for each in self.facts]
        at = max(i for i, count in enumerate(lacking) if count == min(lacking))
        return self.versions[at], telling if at < len(self.versions) - 1 else ()

    def nearest(self, version: str) -> str:
        """Return the release if it is listed, else the listed release next to it."""
        return self.versions[nearest(self.versions, version)]

    def facts_of(self, version: str) -> Mapping[str, KeyFact]:
        """Return the keys of a listed release."""
        return self.facts[self.versions.index(version)]

    def table(self, version: str) -> ReleaseTable:
        """Return the table of a listed release, as `HeldKeys` takes it."""
        return _tables(self)[self.versions.index(version)]

    def others(self, version: str) -> tuple[ReleaseTable, ...]:
        """Return the tables of the other releases, the newest first."""
        return tuple(each for each in reversed(_tables(self)) if each.version != version)

    def merged(self) -> ReleaseTable:
        """Return the table of every key that some release has."""
        return merged_table(_tables(self), self.passed)


@cache
def _tables(tables: KeyTables) -> tuple[ReleaseTable, ...]:
    return tuple(
        release_table(version, facts, tables.passed, tables.added)
        for version, facts in zip(tables.versions, tables.facts, strict=True)
    )


def release_table(
    name: str,
    facts: Mapping[str, KeyFact],
    passed: frozenset[str] = frozenset(),
    added: tuple[str, ...] = (),
) -> ReleaseTable:
    """Return the table of one release, or of a fork, made of the keys of its parser."""
    return ReleaseTable(
        name,
        frozenset(facts) | passed,
        {key: frozenset(fact.values) for key, fact in facts.items() if fact.values},
        added,
        {key: fact.kind for key, fact in facts.items() if fact.kind},
    )


def defaults(facts: Mapping[str, KeyFact]) -> dict[str, str]:
    """Return key -> text of the default, for each key whose default could be read."""
    return {key: fact.default for key, fact in facts.items() if fact.default != UNREAD}


@cache
def load_tables(path: Path, added: tuple[str, ...] = ()) -> KeyTables:
    """Return the tables of a data file."""
    plain = json.loads(path.read_text(encoding="utf-8"))
    facts: list[dict[str, KeyFact]] = [{} for _ in plain["versions"]]
    for key, spans in plain["keys"].items():
        for first, last, kind, default, values in spans:
            fact = KeyFact(kind, default, tuple(values))
            for i in range(first, last + 1):
                facts[i][key] = fact
    return KeyTables(
        tuple(plain["versions"]), tuple(facts), frozenset(plain.get("passed", ())), added
    )
