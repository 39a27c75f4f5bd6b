"""Small embedded cells, and folders with nasty names to train them in."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.identity import fingerprint
from orchestrator.records import AttemptPaths, Cell, Outcome
from orchestrator.settings import (
    Advantage,
    BackendRef,
    Batch,
    Cadence,
    Data,
    Kl,
    Loss,
    Model,
    Optimizer,
    Rollout,
    Settings,
)


def _embedded(
    estimator: Any = "none", placement: Any = None, beta: float = 0.0, /, **changed: Any
) -> Settings:
    plain: dict[str, Any] = {
        "model": Model(name="elder", path="micro:elder", chat_template="none"),
        "data": Data(name="sort", path="micro:sort", reward="exact", max_prompt_tokens=8),
        "advantage": Advantage(estimator="rloo"),
        "loss": Loss(),
        "kl": Kl(estimator=estimator, placement=placement, beta=beta),
        "rollout": Rollout(group_size=5, max_response_tokens=7),
        "batch": Batch(num_prompts=4),
        "optimizer": Optimizer(learning_rate=1e-3),
        "num_train_steps": 4,
        "backend": BackendRef(name="micro", version="1"),
    }
    return Settings(**{**plain, **changed})


def _cell_of(settings: Settings, **cadence: int | None) -> Cell:
    return Cell(
        id=fingerprint(settings),
        slug="a-cell",
        studies=("study",),
        axes={},
        settings=settings,
        cadence=Cadence(**cadence),
    )


def _place_at(root: Path, attempt: int = 1) -> AttemptPaths:
    return AttemptPaths(root / "plan", root / "attempts" / str(attempt), root / "checkpoints")


def _lines(place: AttemptPaths) -> list[dict[str, Any]]:
    found = [json.loads(x) for x in (place.attempt_dir / "metrics.jsonl").read_text().splitlines()]
    for line in found:
        del line["time"]
        line["values"].pop("time/step_seconds", None)
    return found


@pytest.fixture(scope="session")
def embedded() -> Callable[..., Settings]:
    """(estimator, placement, beta, **changed) -> settings that train `elder` on sorting: four
    train steps of 4 prompts with 5 rollouts each."""
    return _embedded


@pytest.fixture(scope="session")
def cell_of() -> Callable[..., Cell]:
    """(settings, **cadence) -> cell"""
    return _cell_of


@pytest.fixture(scope="session")
def place_at() -> Callable[..., AttemptPaths]:
    """(root, attempt=1) -> place"""
    return _place_at


@pytest.fixture(scope="session")
def lines() -> Callable[[AttemptPaths], list[dict[str, Any]]]:
    """The metrics of an attempt, without what a clock says."""
    return _lines


@pytest.fixture
def place(tmp_path: Path) -> AttemptPaths:
    return _place_at(tmp_path)


@pytest.fixture
def trained(tmp_path: Path) -> Callable[..., tuple[Outcome, AttemptPaths]]:
    """(settings, **cadence) -> outcome and place, trained in a folder of its own."""
    from backends.micro.train import run

    numbers = iter(range(10_000))

    def train(settings: Settings, **cadence: int | None) -> tuple[Outcome, AttemptPaths]:
        place = _place_at(tmp_path / f"{next(numbers)} 'b' \"c\"\n$(d) é")
        return run(_cell_of(settings, **cadence), place), place

    return train
