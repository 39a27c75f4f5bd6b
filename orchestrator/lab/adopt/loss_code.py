"""Keep the digests of a library's code of the KL, the advantage and the policy loss, by release.

`audit/code.json` of the library's folder says which files and which names count, and holds what was
read. The audit compares a checkout with the releases of a library that orch drives
(orchestrator.audit.checkout). Of a library that it only reads, too few releases are kept for that:
their code is compared from release to release alone.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from orchestrator import plugins
from orchestrator.analysis.text import counted, listed
from orchestrator.audit.checkout import functions
from orchestrator.errors import EnvironmentFault
from orchestrator.files import read_json
from orchestrator.lab.probes import functions as functions_of
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


def _kept(library: str) -> dict[str, Any]:
    file = _folder(library) / KEPT
    return (
        _read(file, file.stat().st_mtime_ns)
        if file.is_file()
        else {"files": [], "code": {}, "always": "(?!)"}
    )


@lru_cache(maxsize=16)
def _read(file: Path, _changed: int) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return plain


def package_of(library: str) -> str:
    """Return the name of a library's Python package."""
    return str(_kept(library)["files"][0].partition("/")[0])


def releases_of(library: str) -> list[str]:
    """Return the releases whose code was read, oldest first."""
    code = _kept(library)["code"]
    read = {
        release
        for named in code.values()
        for by_digest in named.values()
        for releases in by_digest.values()
        for release in releases
    }
    return sorted(read, key=lambda each: (version_tuple(each), each))


def rewritten(library: str, old: str, new: str) -> list[str] | None:
    """Return the functions that both releases have with another code.

    Return None if the code of one of them was not read.
    """
    before, after = (_flat(of_release(library, each)) for each in (old, new))
    if not before or not after:
        return None
    return [name for name in before if name in after and before[name] != after[name]]


def _flat(digests: Digests) -> dict[str, str]:
    return {f"{path}: {name}": d for path, own in digests.items() for name, d in own.items()}


def unmeasured(library: str, old: str, new: str) -> list[str]:
    """Return the functions with another code that orch has not run in both releases."""
    ran = _ran(library, old, new)
    return [each for each in _names(library, old, new) if each not in ran]


def other_results(library: str, old: str, new: str, text: str) -> list[str]:
    """Return the measurements with other results that count for a launch: of a function that every
    launch calls, or of one that the text names."""
    measured, words = functions_of.read(library), set(re.findall(r"[A-Za-z]\w{2,30}", text))
    always = re.compile(_kept(library)["always"])
    return [
        each
        for each in functions_of.changed(library, old, new) or []
        for function in [measured[new][each]["function"]]
        if always.search(function) or words & {each.split()[0], *function.split("_")}
    ]


def _names(library: str, old: str, new: str) -> list[str]:
    return [each.rpartition(": ")[2] for each in rewritten(library, old, new) or []]


def _ran(library: str, old: str, new: str) -> dict[str, bool]:
    """Return each function that was run in both releases -> True if all its results are equal."""
    newer, other = functions_of.read(library).get(new, {}), functions_of.changed(library, old, new)
    differ = {newer[each]["function"] for each in other or []}
    ran = {each: each not in differ for each in functions_of.measured_in_both(library, old, new)}
    by_defaults = read_json(_folder(library) / "defaults.json") or {}
    if old in by_defaults and new in by_defaults:
        before, after = by_defaults[old], by_defaults[new]
        is_same = all(before[launch] == after[launch] for launch in ("nothing", "beta"))
        shared = before["sources"].keys() & after["sources"].keys()
        ran |= {each.partition(":")[2]: is_same for each in shared}
    return ran


def differing_code_text(library: str, old: str, new: str, probed: Collection[str] = ()) -> str:
    """Return what was compared of the functions whose code differs; empty for none.

    probed: functions that the evidence of both releases has, which the text leaves out.
    """
    names = [each for each in _names(library, old, new) if each not in probed]
    if not names:
        return ""
    have = "has" if len(names) == 1 else "have"
    text = (
        f"{counted(len(names), 'function')} of the KL, the advantage or the loss {have} other code "
        f"in {new} than in {old}"
    )
    ran = _ran(library, old, new)
    for results, is_same in (("the same results", True), ("other results", False)):
        if some := [each for each in names if ran.get(each) is is_same]:
            text += f"; orch ran {listed(some)} of both releases on the same inputs, with {results}"
    if unknown := [each for each in names if each not in ran]:
        text += f"; orch has not run {listed(unknown)}: read what changed there"
    return text


def of_source(library: str, text: Callable[[str], str | None]) -> Digests:
    """Return the code of a release; {} if it has none of the files that count.

    text: returns the text of a file by its path in the library, or None.
    """
    plain = _kept(library)
    counts = re.compile(plain["names"])
    texts = {path: read for path in plain["files"] if (read := text(path)) is not None}
    return {
        path: {n: each.digest for n, each in functions(read).items() if counts.search(n)}
        for path, read in texts.items()
    }


def of_release(library: str, version: str) -> Digests:
    """Return the code of a release that was read; {} if it was not."""
    return {
        path: own
        for path, named in _kept(library)["code"].items()
        if (own := {n: d for n, by in named.items() for d in by if version in by[d]})
    }


def keep(library: str, version: str, source: Path) -> Path:
    """Read the code of a release, and keep it beside that of others. Return the file.

    source: the folder that has the library's package, or the package. Raise EnvironmentFault if it
    has none of the files.
    """
    file = _folder(library) / KEPT
    plain = json.loads(file.read_text(encoding="utf-8"))
    read = of_source(library, lambda path: text_of(source, path))
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
        f" {json.dumps(key)}: {json.dumps(plain[key])}" for key in ("files", "names", "always")
    )
    body = ",\n".join(lines)
    file.write_text(f'{{\n{head},\n "code": {{\n{body}\n }}\n}}\n', encoding="utf-8")
    return file


def text_of(source: Path, path: str) -> str | None:
    """Return the text of a file by its path in the library, or None.

    source: the folder that has the library's package, or the package.
    """
    files = (each / path for each in (source, source.parent))
    file = next((each for each in files if each.is_file()), None)
    return None if file is None else file.read_text(encoding="utf-8")
