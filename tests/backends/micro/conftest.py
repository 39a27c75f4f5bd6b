"""Folders with nasty names to train embedded cells in."""

from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.records import AttemptPaths, Outcome
from orchestrator.settings import Settings
from tests.backends.micro.cells import cell_of, place_at


@pytest.fixture
def place(tmp_path: Path) -> AttemptPaths:
    return place_at(tmp_path)


@pytest.fixture
def trained(tmp_path: Path) -> Callable[..., tuple[Outcome, AttemptPaths]]:
    """(settings, **cadence) -> outcome and place, trained in a folder of its own."""
    from backends.micro.train import run

    numbers = iter(range(10_000))

    def train(settings: Settings, **cadence: int | None) -> tuple[Outcome, AttemptPaths]:
        place = place_at(tmp_path / f"{next(numbers)} 'b' \"c\"\n$(d) é")
        return run(cell_of(settings, **cadence), place), place

    return train
