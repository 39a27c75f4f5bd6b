"""Copies of a finished experiment, and experiments that were not run."""

import shutil
from pathlib import Path

import pytest
from command_line import ROOT


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
