"""A finished experiment, in a folder with an awkward name."""

import shutil
from pathlib import Path

import pytest
from command_line import ROOT, orch


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which smoke.yaml has run to its end. Tests must leave it as it is."""
    folder = tmp_path_factory.mktemp('it\'s a "run" ü')
    shutil.copytree(ROOT / "experiments", folder / "experiments")
    done = orch(folder, "run", "experiments/smoke.yaml")
    assert done.returncode == 0, done.stderr
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
