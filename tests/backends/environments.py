"""Environments of the trainers' libraries, for contract tests: made once, cached, never orch's.

A library's own parser runs in its own virtual environment, in a process of its own. Environments
lie in $ORCH_TEST_ENVIRONMENTS, or the user's cache. Where one cannot be made (no package index) the
tests that need it are skipped and say why; in CI they fail instead.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

import pytest


def library_python(name: str, *, no_deps: Sequence[str], needs: Sequence[str] = ()) -> Path:
    """The Python of an environment that holds `no_deps` (a library, without what it pulls in) and
    `needs` (with what they pull in)."""
    wanted = "\n".join([*no_deps, "--", *needs, sys.version])
    key = hashlib.sha256(wanted.encode()).hexdigest()[:10]
    root = Path(os.environ.get("ORCH_TEST_ENVIRONMENTS") or Path.home() / ".cache" / "orch-tests")
    home = root / f"{name}-{key}"
    root.mkdir(parents=True, exist_ok=True)
    with (root / f"{name}-{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "ready").exists():
            _make(home, no_deps, needs)
    return home / "bin" / "python"


def _make(home: Path, no_deps: Sequence[str], needs: Sequence[str]) -> None:
    shutil.rmtree(home, ignore_errors=True)
    venv.create(home, with_pip=True)
    pip = [home / "bin" / "python", "-m", "pip", "install", "-q"]
    for extra, packages in ((["--no-deps", "--ignore-requires-python"], no_deps), ([], needs)):
        if not packages:
            continue
        done = subprocess.run(
            [*pip, *extra, *packages], capture_output=True, text=True, check=False
        )
        if done.returncode:
            reason = f"{home.name} cannot be made: {done.stderr.strip()[-500:]}"
            if os.environ.get("CI"):
                raise RuntimeError(reason)
            pytest.skip(reason)
    (home / "ready").write_text("")
