"""Keep the digests of a library's code of the KL, the advantage and the policy loss, by release.

`audit/code.json` of the library's folder says which files and which names count, and holds what was
read. The audit compares a checkout with it (orchestrator.audit.checkout).
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator import plugins
from orchestrator.audit.checkout import functions
from orchestrator.errors import EnvironmentFault
from orchestrator.library.key_tables import version_tuple

KEPT = "audit/code.json"
Digests = Mapping[str, Mapping[str, str]]
"""Path in the library -> function -> digest of its code."""


def libraries() -> tuple[str, ...]:
    """Return the libraries whose code is kept."""
    every = sorted({*plugins.names(), *plugins.only_read()})
    return tuple(name for name in every if (_folder(name) / KEPT).is_file())


def _folder(library: str) -> Path:
    is_read = library in plugins.only_read()
    return plugins.reader_folder(library) if is_read else plugins.folder(library)


def of_release(library: str, version: str) -> Digests:
    """Return the code of a release that was read; {} if it was not."""
    code = _kept(library)["code"] if (_folder(library) / KEPT).is_file() else {}
    return {
        path: {n: d for n, by in named.items() for d, releases in by.items() if version in releases}
        for path, named in code.items()
    }


def _kept(library: str) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads((_folder(library) / KEPT).read_text(encoding="utf-8"))
    return plain


def keep(library: str, version: str, source: Path) -> Path:
    """Read the code of a release, and keep it beside that of others. Return the file.

    source: the folder that has the library's package, or the package. Raise EnvironmentFault if it
    has none of the files.
    """
    file = _folder(library) / KEPT
    plain = _kept(library)
    counts, read = re.compile(plain["names"]), dict[str, dict[str, str]]()
    for path in plain["files"]:
        for place in (source.parent / path, source / path):
            if place.is_file():
                found = functions(place.read_text(encoding="utf-8"))
                read[path] = {n: each.digest for n, each in found.items() if counts.search(n)}
    if not read:
        raise EnvironmentFault(
            f"{library} {version} cannot be asked: {source} has none of {', '.join(plain['files'])}"
        )
    code = plain["code"]
    for named in code.values():
        for digests in named.values():
            for releases in digests.values():
                releases[:] = [each for each in releases if each != version]
    for path, own in read.items():
        for name, digest in own.items():
            releases = code.setdefault(path, {}).setdefault(name, {}).setdefault(digest, [])
            releases[:] = sorted([*releases, version], key=version_tuple)
    kept = {
        path: {
            name: {digest: releases for digest, releases in digests.items() if releases}
            for name, digests in sorted(code[path].items())
        }
        for path in plain["files"]
        if path in code
    }
    lines = [
        f"  {json.dumps(path)}: {{\n"
        + ",\n".join(f"   {json.dumps(name)}: {json.dumps(each)}" for name, each in named.items())
        + "\n  }"
        for path, named in kept.items()
    ]
    head = ",\n".join(
        f" {json.dumps(key)}: {json.dumps(plain[key])}" for key in plain if key != "code"
    )
    body = ",\n".join(lines)
    file.write_text(f'{{\n{head},\n "code": {{\n{body}\n }}\n}}\n', encoding="utf-8")
    return file
