"""Fixtures over kit.py; a runs folder here always has a nasty path."""

from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.library.protocol import Backend
from orchestrator.records import Cell
from orchestrator.rundir import RunFolder
from tests.launch.kit import Orch, make_cell, move_in


@pytest.fixture
def cell() -> Callable[..., Cell]:
    return make_cell


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """Spaces, quotes, a newline, a dollar and Greek: a path is never pasted into a shell."""
    return RunFolder(tmp_path / "a 'b\" $c\nβ" / "runs" / "test")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Backend:
    return move_in(monkeypatch)


@pytest.fixture
def orch(tmp_path: Path) -> Orch:
    return Orch(tmp_path)
