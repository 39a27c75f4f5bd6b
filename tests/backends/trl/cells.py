"""Cells that TRL trains: the shipped policy and task, at the scale of tests."""

from typing import Any

from orchestrator.identity import fingerprint
from orchestrator.records import Cell
from orchestrator.settings import Kl, Loss
from tests import golden

BY_SEQUENCES = Loss(aggregation="constant", constant_tokens=1)


def cell(
    kl: Kl,
    *,
    version: str = "1.16.0",
    advantage: str = "rloo",
    loss: Loss = BY_SEQUENCES,
    minibatches: int = 1,
    steps: int = 4,
    every: int | None = None,
    gpus: int = 0,
    **changes: Any,
) -> Cell:
    """One cell of the shipped policy and task, at the scale of tests."""
    plain = {
        "model": {"name": "elder", "path": "micro:elder", "chat_template": "none"},
        "data": {"name": "sort", "path": "micro:sort", "reward": "exact", "max_prompt_tokens": 8},
        "advantage.estimator": advantage,
        "kl": {"estimator": "none"},
        "rollout": {"group_size": 4, "max_response_tokens": 6},
        "batch": {"num_prompts": 4, "num_minibatches": minibatches},
        "optimizer": {"learning_rate": 1e-3},
        "num_train_steps": steps,
        "precision": {"training": "fp32", "checkpoint": "fp32"},
        "resources": {"num_nodes": 1, "gpus_per_node": gpus},
        "cadence": {"checkpoint_every_steps": every},
    }
    first = golden.cell_of("trl", version, plain)
    settings = first.settings.but(kl=kl, loss=loss, **changes)
    own = fingerprint(settings)
    return first.but(id=own, slug=f"cell-{own[:6]}", settings=settings)
