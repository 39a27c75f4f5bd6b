"""The keys of a library's releases, as its own parser gives them: a data file of a backend.

    {"versions": ["0.2.0", "0.3.0"],
     "keys": {"trainer.seed": {"0.2.0": {"kind": "int", "default": 42}}, ...}}

A key has its facts from a release on until another release changes them; null ends it. A test of
each backend compares them with the library (`tests/backends/release_facts.py` writes them).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from orchestrator.library.manifest import ReleaseTable


class Option(NamedTuple):
    """One key of a release."""

    kind: str
    """The key's type, as the library names it."""
    default: object = None
    values: tuple[object, ...] | None = None
    """All values that the key takes, or None if the library has no list of them."""


Options = Mapping[str, Option]
"""Key -> the facts of one release about it."""


def load(path: Path) -> dict[str, Options]:
    """Return the keys of each release, oldest release first."""
    plain = json.loads(path.read_text(encoding="utf-8"))
    releases: dict[str, dict[str, Option]] = {version: {} for version in plain["versions"]}
    for key, history in plain["keys"].items():
        option = None
        for version, options in releases.items():
            if version in history:
                option = _option(history[version])
            if option is not None:
                options[key] = option
    return dict(releases)


def _option(facts: Mapping[str, object] | None) -> Option | None:
    if facts is None:
        return None
    values = facts.get("values")
    return Option(
        str(facts["kind"]),
        facts.get("default"),
        tuple(values) if isinstance(values, list) else None,
    )


def dump(releases: Mapping[str, Options]) -> str:
    """Return the text of the file for the keys of releases, oldest first."""
    keys = sorted({key for options in releases.values() for key in options})
    lines = [
        f"  {json.dumps(key)}: {json.dumps(_history(key, releases), ensure_ascii=False)}"
        for key in keys
    ]
    versions = json.dumps(list(releases))
    return f'{{\n "versions": {versions},\n "keys": {{\n' + ",\n".join(lines) + "\n }\n}\n"


def _history(key: str, releases: Mapping[str, Options]) -> dict[str, object]:
    history: dict[str, object] = {}
    before: Option | None = None
    for version, options in releases.items():
        option = options.get(key)
        if option != before:
            history[version] = None if option is None else _facts(option)
        before = option
    return history


def _facts(option: Option) -> dict[str, object]:
    facts: dict[str, object] = {"kind": option.kind, "default": option.default}
    return facts if option.values is None else {**facts, "values": list(option.values)}


def table(
    version: str,
    options: Options,
    *,
    added: Sequence[str] = (),
    registered: Mapping[str, Iterable[object]] | None = None,
) -> ReleaseTable:
    """Return the table of a release for a manifest.

    `added`: prefixes of keys that orch's launch adds. `registered`: key -> values that the launch
    registers in the library, in addition to the library's own.
    """
    more = registered or {}
    values = {
        key: frozenset(option.values) | frozenset(more.get(key, ()))
        for key, option in options.items()
        if option.values is not None
    }
    kinds = {key: option.kind for key, option in options.items()}
    return ReleaseTable(version, frozenset(options), values, tuple(added), kinds)
