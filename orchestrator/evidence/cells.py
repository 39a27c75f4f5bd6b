"""The cells for measurements of libraries: one small run, with every KL term that it could have."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, get_args

from orchestrator import plugins
from orchestrator.errors import SelectionError, UnsupportedSetting, did_you_mean
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

Release = tuple[str, str]
"""Library and version."""

ESTIMATORS: tuple[str, ...] = names()
PLACEMENTS: tuple[Placement, ...] = get_args(Placement)
ADVANTAGES: tuple[AdvantageEstimator, ...] = get_args(AdvantageEstimator)
AGGREGATIONS: tuple[LossAggregation, ...] = get_args(LossAggregation)

BETA = 0.5
CONSTANT_TOKENS = 8
_PLACE = AttemptPaths(Path("plan"), Path("attempt"), Path("checkpoints"))
_RESOURCES = (Resources(num_nodes=2, gpus_per_node=4), Resources(num_nodes=1, gpus_per_node=4))
"""Two nodes, or one node for a library that orch starts on only one."""
SUM_OF_RESPONSE: tuple[LossAggregation, int] = ("constant", 1)
"""The loss aggregation of a cell whose KL term has no mean over tokens."""


def settings(
    library: str,
    version: str,
    kl: Kl,
    *,
    on_policy: bool = True,
    advantage: AdvantageEstimator = "rloo",
    aggregation: LossAggregation = "token_mean",
    constant_tokens: int = CONSTANT_TOKENS,
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
        constant_tokens,
        group_size,
        1 if on_policy else num_minibatches,
        0 if on_policy or num_minibatches > 1 else 1,
    )
    return base.model_copy(update={"kl": kl})


def fitting(library: str, version: str, kl: Kl, *, on_policy: bool = True, **more: Any) -> Settings:
    """Return settings with a KL term that the backend accepts. Raise UnsupportedSetting for none.

    The loss is a mean over tokens, else SUM_OF_RESPONSE. Off-policy it has minibatches, or
    staleness if the library has no minibatches.
    """
    first: UnsupportedSetting | None = None
    wanted = settings(library, version, kl, on_policy=on_policy, **more)
    for _ in range(3):
        try:
            translated(wanted)
        except UnsupportedSetting as error:
            first = first or error
            another = _another(wanted, error.field)
            if another is None:
                break
            wanted = another
        else:
            return wanted
    raise first or LookupError(kl.label)


def accepted(library: str, version: str, kl: Kl, on_policy: bool = True) -> Settings | str:
    """Return settings with a KL term as `fitting` does, or the field that the backend refuses."""
    try:
        return fitting(library, version, kl, on_policy=on_policy)
    except UnsupportedSetting as error:
        return error.field


def _another(wanted: Settings, field: str) -> Settings | None:
    """Return other settings for the same measurement after a field was refused, or None."""
    batch, loss = wanted.batch, wanted.loss
    if field == "batch.num_minibatches" and batch.num_minibatches > 1:
        return wanted.but(
            batch=batch.but(num_minibatches=1),
            max_staleness_steps=1,
            num_train_steps=wanted.num_train_steps // batch.num_minibatches,
        )
    if field == "loss.aggregation" and loss.aggregation == "token_mean":
        aggregation, tokens = SUM_OF_RESPONSE
        return wanted.but(loss=loss.but(aggregation=aggregation, constant_tokens=tokens))
    if field == "loss.ratio_level" and loss.ratio_level == "token":
        return wanted.but(loss=loss.but(ratio_level="sequence"))
    return None


def sums_a_response(wanted: Settings) -> bool:
    """Return True if the loss is a mean over responses of the sum over their tokens."""
    return (wanted.loss.aggregation, wanted.loss.constant_tokens) == SUM_OF_RESPONSE


@lru_cache(maxsize=512)
def _base(
    library: str,
    version: str,
    advantage: AdvantageEstimator,
    aggregation: LossAggregation,
    constant_tokens: int,
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
            constant_tokens=constant_tokens if aggregation == "constant" else None,
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
    """Return the launch of these settings. Raise UnsupportedSetting if the library refuses them."""
    backend = plugins.load(wanted.backend.name)
    on_two_nodes, on_one_node = (
        _cell().model_copy(update={"settings": wanted, "resources": each}) for each in _RESOURCES
    )
    try:
        return backend.translate(on_two_nodes, _PLACE)
    except UnsupportedSetting as error:
        if error.field != "resources.num_nodes":
            raise
    return backend.translate(on_one_node, _PLACE)


@cache
def _cell() -> Cell:
    wanted = _base("probe", "1", "rloo", "token_mean", CONSTANT_TOKENS, 2, 1, 0)
    return Cell(
        id="probe0000000",
        slug="probe",
        studies=("probe",),
        axes={},
        settings=wanted,
        resources=_RESOURCES[0],
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
    """Return backend -> its releases, newest first, for backends with a library to probe."""
    return {
        name: plugins.load(name).versions
        for name in plugins.names()
        if plugins.evidence_dir(name).is_dir()
    }


def releases(
    wanted: Sequence[str] = (), known: Mapping[str, Sequence[str]] | None = None
) -> list[Release]:
    """Return the releases named (`verl`, `verl@0.9.1`), or all.

    known: library -> its releases; None: those that orch drives. Raise SelectionError for another.
    """
    known = libraries() if known is None else known
    everything = [(name, version) for name, versions in known.items() for version in versions]
    if not wanted:
        return everything
    chosen: list[Release] = []
    for text in wanted:
        library, _, version = text.partition("@")
        if library not in known:
            raise SelectionError(
                f"there is no library '{library}' to measure{did_you_mean(library, known)} "
                f"(there are: {', '.join(known)})"
            )
        if version and version not in known[library]:
            raise SelectionError(
                f"orch does not know {library} {version} (it knows: {', '.join(known[library])})"
            )
        chosen += [(library, each) for each in known[library] if not version or each == version]
    return list(dict.fromkeys(chosen))
