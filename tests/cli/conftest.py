"""A finished experiment, in a folder with an awkward name."""

import fcntl
import os
import shutil
import time
from pathlib import Path

import pytest
from command_line import ROOT, orch


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which smoke.yaml has run to its end. Tests must leave it as it is."""
    parallel = "PYTEST_XDIST_WORKER" in os.environ
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if parallel else base
    folder = shared / 'it\'s a "run" ü'
    with (shared / "finished.lock").open("a") as lock:  # once for all workers of a test run
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not lock.tell():
            shutil.copytree(ROOT / "experiments", folder / "experiments", dirs_exist_ok=True)
            began = time.monotonic()
            done = orch(folder, "run", "experiments/smoke.yaml")
            (shared / "finished.seconds").write_text(f"{time.monotonic() - began}")
            assert done.returncode == 0, done.stderr
            lock.write("done")
    return folder


@pytest.fixture
def workspace(finished: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may change."""
    folder = tmp_path / "a copy; $HOME"
    shutil.copytree(finished, folder)
    return folder


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """The experiments, and nothing run."""
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments")
    return tmp_path
