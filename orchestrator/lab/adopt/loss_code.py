"""Keep the digests of a library's code of the KL, the advantage and the policy loss, by release.

`audit/code.json` of the library's folder says which files and which names count, and holds what was
read, so that the audit can compare a checkout with the releases (orchestrator.audit.checkout).
"""

import json
import re
from pathlib import Path

from orchestrator import plugins
from orchestrator.audit.checkout import functions
from orchestrator.library.key_tables import numbers

KEPT = "audit/code.json"


def libraries() -> tuple[str, ...]:
    """Return the libraries whose code is kept."""
    return tuple(name for name in plugins.names() if (plugins.folder(name) / KEPT).is_file())


def keep(library: str, version: str, source: Path) -> Path:
    """Read the code of a release, and keep it beside that of others. Return the file.

    source: the folder that has the library's package, or the package. Raise FileNotFoundError if it
    has none of the files.
    """
    file = plugins.folder(library) / KEPT
    plain = json.loads(file.read_text(encoding="utf-8"))
    counts, code = re.compile(plain["names"]), plain["code"]
    root = source if (source / library).is_dir() else source.parent
    read = {path: root / path for path in plain["files"] if (root / path).is_file()}
    if not read:
        raise FileNotFoundError(f"{source} has none of {', '.join(plain['files'])}")
    for named in code.values():
        for digests in named.values():
            for releases in digests.values():
                releases[:] = [each for each in releases if each != version]
    for path, code_file in read.items():
        for name, function in functions(code_file.read_text(encoding="utf-8")).items():
            if counts.search(name):
                digests = code.setdefault(path, {}).setdefault(name, {})
                releases = digests.setdefault(function.digest, [])
                releases[:] = sorted([*releases, version], key=numbers)
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
        f" {json.dumps(key)}: {json.dumps(plain[key])}" for key in ("files", "names", "always")
    )
    body = ",\n".join(lines)
    file.write_text(f'{{\n{head},\n "code": {{\n{body}\n }}\n}}\n', encoding="utf-8")
    return file
