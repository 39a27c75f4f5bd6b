"""Small embedded cells, and what they leave."""

import json
from pathlib import Path
from typing import Any

from orchestrator.records import AttemptPaths, Cadence, Cell
from orchestrator.settings import Kl, Settings
from tests import settings as of_tests


def embedded(
    estimator: Any = "none", placement: Any = None, beta: float = 0.0, /, **changed: Any
) -> Settings:
    """Settings that train `elder` on sorting: four steps of 4 prompts with 5 rollouts each."""
    own = {
        "model": {"name": "elder", "path": "micro:elder", "chat_template": "none"},
        "data": {"name": "sort", "path": "micro:sort", "reward": "exact", "max_prompt_tokens": 8},
        "kl": Kl(estimator=estimator, placement=placement, beta=beta),
        "rollout": {"group_size": 5, "max_response_tokens": 7},
        "num_train_steps": 4,
        "backend": {"name": "micro", "version": "1"},
    }
    return of_tests.plain(**{**own, **changed})


def cell_of(settings: Settings, **cadence: int | None) -> Cell:
    return of_tests.cell_of(settings, cadence=Cadence(**cadence))


def place_at(root: Path, attempt: int = 1) -> AttemptPaths:
    return AttemptPaths(root / "plan", root / "attempts" / str(attempt), root / "checkpoints")


def lines(place: AttemptPaths) -> list[dict[str, Any]]:
    """The metrics of an attempt, without what a clock says."""
    found = [json.loads(x) for x in (place.attempt_dir / "metrics.jsonl").read_text().splitlines()]
    for line in found:
        del line["time"]
        line["values"].pop("time/step_seconds", None)
    return found
