"""Small embedded cells, and what they leave."""

import json
from pathlib import Path
from typing import Any

from orchestrator.identity import fingerprint
from orchestrator.records import AttemptPaths, Cell
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


def embedded(
    estimator: Any = "none", placement: Any = None, beta: float = 0.0, /, **changed: Any
) -> Settings:
    """Settings that train `elder` on sorting: four steps of 4 prompts with 5 rollouts each."""
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


def cell_of(settings: Settings, **cadence: int | None) -> Cell:
    return Cell(
        id=fingerprint(settings),
        slug="a-cell",
        studies=("study",),
        axes={},
        settings=settings,
        cadence=Cadence(**cadence),
    )


def place_at(root: Path, attempt: int = 1) -> AttemptPaths:
    return AttemptPaths(root / "plan", root / "attempts" / str(attempt), root / "checkpoints")


def lines(place: AttemptPaths) -> list[dict[str, Any]]:
    """The metrics of an attempt, without what a clock says."""
    found = [json.loads(x) for x in (place.attempt_dir / "metrics.jsonl").read_text().splitlines()]
    for line in found:
        del line["time"]
        line["values"].pop("time/step_seconds", None)
    return found
