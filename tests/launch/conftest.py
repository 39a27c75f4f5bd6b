"""Fixtures over kit.py."""

from pathlib import Path

import pytest

from orchestrator.library.protocol import Backend
from tests.launch.kit import Orch, move_in

ROOT = Path(__file__).parents[2]
VERL = """\
from pathlib import Path

_real = Path({real!r})
__path__ = [str(_real / "verl")]
exec((_real / "verl" / "__init__.py").read_text())
from orchestrator.library.protocol import EmbeddedTrainer

class StandIn(type(BACKEND), EmbeddedTrainer):
    tasks_dir = _real / "micro" / "tasks"

BACKEND = StandIn()
"""
"""orch's own verl backend. The policy that the stand-in trains understands only its own tasks."""


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """orch's backends, with tasks for verl that the embedded policy understands."""
    real, mine = ROOT / "backends", tmp_path / "house" / "backends"
    (mine / "verl").mkdir(parents=True)
    for path in real.iterdir():
        if path.name not in ("verl", "__pycache__"):
            (mine / path.name).symlink_to(path)
    (mine / "verl" / "__init__.py").write_text(VERL.format(real=str(real)))
    return mine.parent


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Backend:
    return move_in(monkeypatch)


@pytest.fixture
def orch(tmp_path: Path) -> Orch:
    return Orch(tmp_path)
