"""Cells of the fake backend, a runs folder with a nasty path, and orch as a process to kill."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator import registry
from orchestrator.backend import Backend
from orchestrator.fingerprint import fingerprint
from orchestrator.rundir import RunFolder
from orchestrator.settings import (
    Advantage,
    BackendRef,
    Batch,
    Data,
    Kl,
    Loss,
    Model,
    Optimizer,
    Rollout,
    Settings,
)
from orchestrator.types import Cell

HERE = Path(__file__).parent
HOUSE = HERE / "house"


def make_cell(seed: int = 0, instruction: str = "", steps: int = 3, **more: object) -> Cell:
    settings = Settings(
        model=Model(name="tiny", path="tiny"),
        data=Data(name="counting", path="counting", instruction=instruction),
        advantage=Advantage(estimator="rloo"),
        loss=Loss(),
        kl=Kl(estimator="k1", placement="reward", beta=0.1),
        rollout=Rollout(group_size=4, max_response_tokens=8),
        batch=Batch(num_prompts=4),
        optimizer=Optimizer(learning_rate=1e-3),
        num_train_steps=steps,
        backend=BackendRef(name="fake"),
        seed=seed,
    )
    plain = {
        "id": fingerprint(settings),
        "slug": f"study-k1.reward-s{seed}",
        "studies": ("study",),
        "axes": {"kl": "k1.reward", "seed": str(seed)},
        "settings": settings,
    }
    return Cell.model_validate(plain | more)


@pytest.fixture
def cell() -> Callable[..., Cell]:
    return make_cell


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """Spaces, quotes, a newline, a dollar and Greek: a path is never pasted into a shell."""
    return RunFolder(tmp_path / "a 'b\" $c\nβ" / "runs" / "test")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Backend:
    """The fake backend, for this process and for every process it starts."""
    spec = importlib.util.spec_from_file_location(
        "fake_backend", HOUSE / "backends" / "fake" / "__init__.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    backend: Backend = module.BACKEND
    monkeypatch.setattr(registry, "load", lambda _name: backend)
    monkeypatch.setenv("PYTHONPATH", str(HOUSE))
    return backend


class Orch:
    """A real `launch` in a process of its own, in a terminal's stead."""

    def __init__(self, tmp_path: Path):
        self.cells_file = tmp_path / "cells.json"

    def start(
        self, cells: list[Cell], folder: RunFolder, workers: int = 2, **env: str
    ) -> "subprocess.Popen[str]":
        self.cells_file.write_text(json.dumps([c.model_dump(mode="json") for c in cells]))
        argv = [sys.executable, str(HERE / "drive.py"), str(folder.path), str(self.cells_file)]
        return subprocess.Popen(
            [*argv, str(workers)], env={**os.environ, "PYTHONPATH": str(HOUSE), **env}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )  # fmt: skip

    def run(
        self, cells: list[Cell], folder: RunFolder, workers: int = 2, **env: str
    ) -> dict[str, object]:
        out, err = self.start(cells, folder, workers, **env).communicate(timeout=120)
        assert out, err
        summary: dict[str, object] = json.loads(out.splitlines()[-1])
        return summary


@pytest.fixture
def orch(tmp_path: Path) -> Orch:
    return Orch(tmp_path)
