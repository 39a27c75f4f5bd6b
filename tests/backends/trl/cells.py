"""Cells that TRL trains: the shipped policy and task, at the scale of tests."""

from typing import Any

from orchestrator.identity import fingerprint
from orchestrator.records import Cell
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
    Precision,
    Resources,
    Rollout,
    Settings,
)

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
    plain: dict[str, Any] = {
        "model": Model(name="elder", path="micro:elder", chat_template="none"),
        "data": Data(name="sort", path="micro:sort", reward="exact", max_prompt_tokens=8),
        "advantage": Advantage(estimator=advantage),  # type: ignore[arg-type]  # a word
        "loss": loss,
        "kl": kl,
        "rollout": Rollout(group_size=4, max_response_tokens=6),
        "batch": Batch(num_prompts=4, num_minibatches=minibatches),
        "optimizer": Optimizer(learning_rate=1e-3),
        "num_train_steps": steps,
        "backend": BackendRef(name="trl", version=version),
        "precision": Precision(training="fp32", checkpoint="fp32"),
    }
    settings = Settings(**{**plain, **changes})
    return Cell(
        id=fingerprint(settings),
        slug=f"cell-{fingerprint(settings)[:6]}",
        studies=("a",),
        axes={},
        settings=settings,
        resources=Resources(gpus_per_node=gpus),
        cadence=Cadence(checkpoint_every_steps=every),
    )
