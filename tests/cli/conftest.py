"""Copies of a finished experiment."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def workspace(finished: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may change."""
    folder = tmp_path / "a copy; $HOME"
    shutil.copytree(finished, folder)
    return folder
