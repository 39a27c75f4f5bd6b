"""Cells that TRL trains: the shipped policy, in each way that a manifest's row offers."""

from collections.abc import Iterator
from typing import Any

from orchestrator.identity import fingerprint
from orchestrator.records import Cell
from orchestrator.settings import (
    Advantage,
    BackendRef,
    Batch,
    Cadence,
    Clip,
    Data,
    Kl,
    Loss,
    Model,
    Optimizer,
    Precision,
    ReferencePolicy,
    Resources,
    Rollout,
    Settings,
)

SHIPPED = {
    "full": ("loss", "reward", "reward_and_loss"),
    "full_forward": ("loss", "reward_and_loss"),
    "rb": ("reward_and_loss", "loss"),
    "rb_k1": ("reward_and_loss",),
    "k1_to_go": ("reward",),
}
"""What orch_trl_kl.py adds, and places for it."""
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


def every_kind() -> Iterator[Cell]:
    """Cells of every row of the manifest, in both releases."""
    none = Kl(estimator="none")
    k3 = Kl(estimator="k3", placement="loss", beta=0.1)
    rho_k3 = Kl(estimator="rho_k3", placement="loss", beta=0.1)
    k1 = Kl(estimator="k1", placement="reward", beta=0.1)
    for version in ("1.16.0", "1.9.2"):
        for kl in (none, k3, rho_k3, k1):
            tokens = 1 if version == "1.16.0" or kl == k1 else 6
            loss = Loss(aggregation="constant", constant_tokens=tokens)
            yield cell(kl, version=version, loss=loss)
            many = loss.model_copy(update={"ratio_level": "sequence" if kl == k1 else "token"})
            yield cell(kl, version=version, loss=many, minibatches=2)
            yield cell(kl, version=version, loss=loss.model_copy(update={"clip": None}))
            yield cell(kl, version=version, loss=loss, gpus=2, precision=Precision())
        for kl in (none, k3, rho_k3):
            for advantage in ("rloo", "grpo", "dr_grpo"):
                yield cell(kl, version=version, advantage=advantage, loss=Loss(clip=Clip(dual=3.0)))
            yield cell(kl, version=version, loss=Loss(aggregation="sequence_mean"))
            yield cell(kl, version=version, loss=Loss(aggregation="constant", constant_tokens=6))
        yield cell(k1.model_copy(update={"beta": 0.0}), version=version)
        for estimator, places in SHIPPED.items():
            for place in places:
                kl = Kl(estimator=estimator, placement=place, beta=0.1)  # type: ignore[arg-type]  # a word
                yield cell(kl, version=version, loss=Loss())
        quiet = Kl(estimator="rb", placement="reward_and_loss", beta=0.1)
        for advantage in ("grpo", "dr_grpo"):
            yield cell(quiet, version=version, advantage=advantage, loss=Loss(clip=Clip(dual=3.0)))
        lengths = Loss(aggregation="constant", constant_tokens=6)
        yield cell(quiet, version=version, loss=lengths, minibatches=2)
        yield cell(quiet, version=version, loss=Loss(clip=None), gpus=2, precision=Precision())
        yield cell(quiet.model_copy(update={"beta": 0.0}), version=version, loss=Loss())
        mean = Loss()
        yield cell(k3.model_copy(update={"beta": 0.0}), version=version, loss=mean)
        renewed = k3.model_copy(update={"reset_reference_every_steps": 2})
        yield cell(renewed, version=version, every=3, loss=mean)
        gspo = Loss(ratio_level="sequence_mean")
        for kl in (none, k3, rho_k3.model_copy(update={"ratio_level": "sequence_mean"})):
            yield cell(kl, version=version, loss=gspo, minibatches=2)
        averaged = ReferencePolicy(kind="ema", share=0.6, every_steps=512)
        for kl in (k3, k1):
            tokens = BY_SEQUENCES if kl == k1 else mean
            yield cell(kl.model_copy(update={"reference": averaged}), version=version, loss=tokens)
        model = Model(name="m", path="org/model")
        for schedule in ("linear", "cosine"):
            optimizer = Optimizer(
                learning_rate=1e-6,
                weight_decay=0.01,
                max_grad_norm=None,
                schedule=schedule,  # type: ignore[arg-type]  # a word
                num_warmup_steps=2,
            )
            yield cell(k3, version=version, optimizer=optimizer, model=model, loss=mean)
