"""Tables of releases that `orch adopt` wrote: those of a library's folder, and the project's own.

In a checkout of orch they are written into `backends/<library>`. Elsewhere they lie in the folder
`adopted/<library>` of the folder in which orch is called, in the same files.
"""

from collections.abc import Iterator
from pathlib import Path

from orchestrator.files import write_changed_text
from orchestrator.library.key_tables import (
    Options,
    Releases,
    load_options,
    version_tuple,
    with_release,
)

FOLDER = "adopted"


def project(library: str) -> Path:
    """Return the project's folder of what was adopted of a library."""
    return Path.cwd() / FOLDER / library


def copy_project_tables(library: str, into: Path) -> None:
    """Copy what the project adopted of a library into a folder, if there is anything."""
    source = project(library)
    for file in sorted(source.rglob("*")) if source.is_dir() else ():
        if file.is_file():
            target = into / file.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            write_changed_text(target, file.read_text(encoding="utf-8"))


def folders(own: Path) -> Iterator[Path]:
    """Yield a library's folder, then the project's if there is one."""
    yield own
    theirs = project(own.name)
    if theirs.is_dir():
        yield theirs


def file_of(library: str, own_file: Path) -> Path:
    """Return a file of a library, or the project's where only the project has it.

    own_file: in a folder of the library's folder, such as `evidence/1.16.0.json`.
    """
    theirs = project(library) / own_file.parent.name / own_file.name
    return theirs if not own_file.exists() and theirs.exists() else own_file


def options(file: Path) -> dict[str, Options]:
    """Return the keys of each release of a library, oldest first, the project's releases too.

    file: that of the library's folder, which wins for a release that both have.
    """
    releases: dict[str, Options] = {}
    for folder in folders(file.parent):
        if (folder / file.name).exists():
            releases = {**load_options(folder / file.name), **releases}
    return {version: releases[version] for version in sorted(releases, key=version_tuple)}


def versions(file: Path) -> tuple[str, ...]:
    """Return the releases with keys: those of the library's folder, then the project's alone.

    Each part is newest first. The first release is the default, so it is never one that only the
    project adopted.
    """
    own = load_options(file)
    every = sorted(options(file), key=version_tuple, reverse=True)
    return tuple(sorted(every, key=lambda version: version not in own))


def releases(known: Releases, file: Path) -> Releases:
    """Return the names of keys of every release: those of a library's history, and each release
    that has its keys in `file`, as `options` reads it."""
    for version, own in options(file).items():
        known = with_release(known, version, own)
    return known
