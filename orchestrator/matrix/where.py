"""Where a release's source lies: in an environment of `orch env`, or in a checkout."""

import contextlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from orchestrator import registry
from orchestrator.environments import find, lock_of
from orchestrator.errors import EnvironmentFault
from orchestrator.matrix.asking import Where


class Found(NamedTuple):
    """Where to ask, and the commit of the source, if it is a checkout."""

    where: Where
    commit: str


@contextlib.contextmanager
def sources(
    library: str, version: str, *, python: Path | None = None, source: Path | None = None,
    within: Path | None = None,
) -> Iterator[Found]:  # fmt: skip
    """Where a release can be asked, for as long as it is needed.

    `python`: has torch (default: this one). `source`: the folder of the library's package; else it
    is taken from the contract environment (in `within`, or where environments lie), or from the
    repository that the library's variable names. Raises EnvironmentFault if it is nowhere.
    """
    with_torch = python or Path(sys.executable)
    if source:
        if not source.is_dir():
            raise EnvironmentFault(f"--source {source} is not a folder")
        yield Found(Where(with_torch, source.resolve()), "")
        return
    package = registry.probes(library).PACKAGE
    there = find(library, version, "contract", within)
    inside = sorted(there.path.glob(f"lib/python*/site-packages/{package}")) if there else []
    if inside:
        yield Found(Where(with_torch, inside[0]), "")
        return
    commits = lock_of(library, version, "gpu").words("checkout")
    if not commits:
        raise EnvironmentFault(
            f"the source of {library} {version} is not here: make its environment with "
            f"`orch env create {library}@{version} --contract`, or give the folder of its package "
            "with --source"
        )
    with tempfile.TemporaryDirectory() as folder:
        checkout = _extracted(library, version, commits[0], Path(folder))
        yield Found(Where(with_torch, checkout / package), commits[0])


def _extracted(library: str, version: str, commit: str, folder: Path) -> Path:
    """The sources of a commit, out of the repository pointed to: the folder above the package."""
    (variable, *_) = lock_of(library, version, "gpu").words("variable")
    repository = os.environ.get(variable)
    if not repository:
        raise EnvironmentFault(
            f"{library} is on no registry: point {variable} to a git repository of it that has "
            f"commit {commit[:9]}, or give the folder of its package with --source"
        )
    package = registry.probes(library).PACKAGE
    archive = folder / "source.tar"
    git = [str(shutil.which("git")), "-C", repository, "archive", "-o", str(archive), commit]
    done = subprocess.run([*git, f"src/{package}"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise EnvironmentFault(f"{variable}={repository}: {done.stderr.strip()[-300:]}")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / "src"
