"""Optimizer states of older checkpoints go while a cell trains; what is resumed from stays."""

import shutil
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest

from backends.trl import BACKEND as TRL
from backends.trl.launch.orch_trl import newest
from backends.verl import BACKEND as VERL
from orchestrator.launch import spent_states
from orchestrator.library.protocol import Backend
from orchestrator.settings import Kl
from tests.backends.trl.cells import cell
from tests.cluster.waiting import wait_for
from tests.replay import recorded


def trl_checkpoint(home: Path, step: int) -> Path:
    recorded.checkpoint("trl", home, step, 1)
    return home / f"checkpoint-{step}"


def sharded_checkpoint(home: Path, step: int) -> Path:
    folder = trl_checkpoint(home, step)
    for name in ("optimizer.bin", "pytorch_model_fsdp.bin"):
        shutil.copy(folder / "optimizer.pt", folder / name)
    (folder / "optimizer.pt").unlink()
    return folder


def verl_checkpoint(home: Path, step: int) -> Path:
    recorded.checkpoint("verl", home, step, 1)
    return home / "x1" / f"global_step_{step}"


KINDS = [(TRL, trl_checkpoint), (TRL, sharded_checkpoint), (VERL, verl_checkpoint)]


@pytest.mark.parametrize(("backend", "make"), KINDS)
def test_a_kill_at_any_moment_loses_nothing(
    tmp_path: Path, backend: Backend, make: Callable[[Path, int], Path]
) -> None:
    """After any part of the removals every policy is there, and the newest has its state."""
    place = tmp_path / "whole"
    make(place, 10)
    assert backend.spent_states(place) == []  # the only one: it is resumed from
    make(place, 20)
    last = make(place, 30)
    spent = backend.spent_states(place)
    assert spent
    assert not any(path.is_relative_to(last) for path in spent)
    for number in range(len(spent) + 1):
        for index, gone in enumerate(combinations(spent, number)):
            other = tmp_path / f"{number}-{index}"
            for step in (10, 20, 30):
                make(other, step)
            for path in gone:
                (other / path.relative_to(place)).unlink()
            assert [each.step for each in backend.find_checkpoints(other)] == [10, 20, 30]
            assert backend.spent_states(other) == [
                other / path.relative_to(place) for path in spent if path not in gone
            ]
            if backend is TRL:
                assert newest(other) == other / "checkpoint-30"


def test_the_worker_removes_them_as_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spent_states, "LOOK_SECONDS", 0.02)
    trained = cell(Kl(estimator="none"))
    with spent_states.removed_while_training(trained, tmp_path):
        first = trl_checkpoint(tmp_path, 10)
        second = trl_checkpoint(tmp_path, 20)
        wait_for(lambda: not (first / "optimizer.pt").exists(), 20)
        third = trl_checkpoint(tmp_path, 30)
    assert not (second / "optimizer.pt").exists()
    assert (third / "optimizer.pt").exists()
