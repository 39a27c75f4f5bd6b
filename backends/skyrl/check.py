"""What SkyRL cannot express, refused with the field, what is offered and the nearest cell."""

from collections.abc import Mapping, Sequence

from backends.skyrl.releases import (
    ADVANTAGES,
    AGGREGATIONS,
    ESTIMATORS,
    NEWEST,
    SCHEDULES,
    VERSIONS,
    before,
)
from backends.skyrl.topology import Topology
from orchestrator.errors import UnsupportedSetting
from orchestrator.settings import Settings

CAPABILITIES: Mapping[str, Sequence[object]] = {
    "backend.version": (None, *VERSIONS),
    "advantage.estimator": tuple(ADVANTAGES),
    "loss.aggregation": tuple(AGGREGATIONS),
    "kl.estimator": ("none", *ESTIMATORS),
    "kl.placement": (None, "reward", "loss", "reward_and_loss"),
    "kl.reset_reference_every_steps": (None,),
    "optimizer.epsilon": (1e-8,),
    "optimizer.schedule": tuple(SCHEDULES),
}

_ADVICE = {
    "backend.version": f"Leave the version out for {NEWEST}.",
    "kl.estimator": "Its loss is computed in SkyRL's workers, which no registry reaches. On policy "
    "kl.estimator=k2, kl.placement=loss has the gradient of k1+, k2+, k3+, rho_k3 and sg_rho_k2; "
    "backend verl runs them all.",
    "kl.reset_reference_every_steps": "SkyRL renews the reference policy at the end of every epoch "
    "or never. Leave it out; of orch's backends only the embedded trainer resets it.",
    "optimizer.epsilon": "SkyRL has no key for AdamW's epsilon. Set optimizer.epsilon=1e-8.",
}


def check(settings: Settings) -> str:
    """The release to drive. Raises UnsupportedSetting for the first field it cannot express."""
    values: Mapping[str, object] = {
        "backend.version": settings.backend.version,
        "kl.estimator": settings.kl.estimator,
        "kl.reset_reference_every_steps": settings.kl.reset_reference_every_steps,
        "optimizer.epsilon": settings.optimizer.epsilon,
    }
    for field, value in values.items():
        if value not in CAPABILITIES[field]:
            raise UnsupportedSetting("skyrl", field, value, CAPABILITIES[field], _ADVICE[field])
    for field, path in (("model.path", settings.model.path), ("data.path", settings.data.path)):
        if path.startswith("micro:"):
            raise UnsupportedSetting(
                "skyrl",
                field,
                path,
                ("a Hugging Face id", "a path"),
                "That is shipped with orch for its embedded trainer; use backend micro.",
            )
    known, batch = settings.data.num_prompts, settings.batch.num_prompts
    version = settings.backend.version or NEWEST
    if known is not None and known < batch and not before(version, "0.3.0"):
        raise UnsupportedSetting(
            "skyrl",
            "batch.num_prompts",
            batch,
            (f"1 to {known}",),
            f"SkyRL drops a batch that its data cannot fill: of {known} prompts it would make none "
            f"and end without a train step. Set batch.num_prompts={known} or less.",
        )
    if settings.max_staleness_steps and settings.batch.num_minibatches > 1:
        raise UnsupportedSetting(
            "skyrl",
            "batch.num_minibatches",
            settings.batch.num_minibatches,
            (1,),
            "SkyRL's asynchronous trainer makes one update a rollout batch. Set "
            "batch.num_minibatches=1, or max_staleness_steps=0.",
        )
    return version


def check_shards(settings: Settings, top: Topology) -> int:
    """Sequences of a minibatch on each GPU that trains.

    Raises UnsupportedSetting where they do not divide: SkyRL would round down and drop prompts.
    """
    prompts = settings.batch.num_prompts // settings.batch.num_minibatches
    each, rest = divmod(prompts * settings.rollout.group_size, top.ranks)
    if rest:
        raise UnsupportedSetting(
            "skyrl",
            "batch.num_prompts",
            settings.batch.num_prompts,
            (f"minibatches whose rollouts divide by {top.ranks}",),
            f"SkyRL drops prompts that do not divide among the {top.ranks} GPUs that train: change "
            "batch.num_prompts, rollout.group_size or the resources.",
        )
    return each
