"""The cells that libraries are asked about: one small run, and every KL term it could have."""

from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import get_args

from orchestrator import plugins
from orchestrator.estimators import names
from orchestrator.records import AttemptPaths, Cell, LaunchPlan
from orchestrator.settings import (
    Advantage,
    AdvantageEstimator,
    BackendRef,
    Batch,
    Data,
    Kl,
    Loss,
    LossAggregation,
    Model,
    Optimizer,
    Placement,
    Resources,
    Rollout,
    Settings,
)

ESTIMATORS: tuple[str, ...] = names()
PLACEMENTS: tuple[Placement, ...] = get_args(Placement)
ADVANTAGES: tuple[AdvantageEstimator, ...] = get_args(AdvantageEstimator)
AGGREGATIONS: tuple[LossAggregation, ...] = get_args(LossAggregation)

BETA = 0.5
CONSTANT_TOKENS = 8
_PLACE = AttemptPaths(Path("plan"), Path("attempt"), Path("checkpoints"))
_RESOURCES = Resources(num_nodes=2, gpus_per_node=4)


def settings(
    library: str,
    version: str,
    kl: Kl,
    *,
    on_policy: bool = True,
    advantage: AdvantageEstimator = "rloo",
    aggregation: LossAggregation = "token_mean",
    group_size: int = 2,
    num_minibatches: int = 2,
) -> Settings:
    """Return settings without clipping, so that only the KL term affects the gradient.

    Off-policy it has `num_minibatches`, or, where that is 1, a staleness of one step.
    """
    base = _base(
        library,
        version,
        advantage,
        aggregation,
        group_size,
        1 if on_policy else num_minibatches,
        0 if on_policy or num_minibatches > 1 else 1,
    )
    return base.model_copy(update={"kl": kl})


@lru_cache(maxsize=512)
def _base(
    library: str,
    version: str,
    advantage: AdvantageEstimator,
    aggregation: LossAggregation,
    group_size: int,
    minibatches: int,
    staleness: int,
) -> Settings:
    """Return the settings without a KL term."""
    return Settings(
        model=Model(name="policy", path="org/policy"),
        data=Data(name="math", path="org/math", num_prompts=64_000),
        advantage=Advantage(estimator=advantage),
        loss=Loss(
            aggregation=aggregation,
            clip=None,
            constant_tokens=CONSTANT_TOKENS if aggregation == "constant" else None,
        ),
        kl=Kl(estimator="none"),
        rollout=Rollout(group_size=group_size, max_response_tokens=8),
        batch=Batch(num_prompts=256, num_minibatches=minibatches),
        optimizer=Optimizer(learning_rate=1e-6),
        num_train_steps=250 * minibatches,
        backend=BackendRef(name=library, version=version),
        max_staleness_steps=staleness,
    )


def translated(wanted: Settings) -> LaunchPlan:
    """Return the launch of those settings. Raise UnsupportedSetting where the library refuses."""
    cell = _cell().model_copy(update={"settings": wanted})
    return plugins.load(wanted.backend.name).translate(cell, _PLACE)


@cache
def _cell() -> Cell:
    wanted = _base("probe", "1", "rloo", "token_mean", 2, 1, 0)
    return Cell(
        id="probe0000000",
        slug="probe",
        studies=("probe",),
        axes={},
        settings=wanted,
        resources=_RESOURCES,
    )


@lru_cache(maxsize=256)
def term(estimator: str, placement: Placement | None) -> Kl:
    """Return a KL term of weight BETA, or none without a placement."""
    if placement is None:
        return Kl(estimator="none")
    return Kl(estimator=estimator, placement=placement, beta=BETA)


def terms() -> Iterator[Kl]:
    """Yield every estimator in every placement."""
    for estimator in ESTIMATORS:
        for placement in PLACEMENTS:
            yield term(estimator, placement)


def libraries() -> dict[str, tuple[str, ...]]:
    """Return backends that have a library to probe, with their releases, newest first."""
    return {
        name: plugins.load(name).versions for name in plugins.names() if plugins.has_probes(name)
    }
