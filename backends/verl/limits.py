"""What verl cannot do of a cell, told with the field, the choice there is, and the nearest cell."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, NoReturn, get_args

from backends.verl.arguments import ADVANTAGES, AGGREGATIONS, NEWEST, OFF, VERSIONS
from orchestrator.errors import UnsupportedSetting
from orchestrator.records import Cell
from orchestrator.settings import Placement, Resources, Settings

CAPABILITIES: Mapping[str, Sequence[object]] = {
    "backend.version": (None, *VERSIONS),
    "advantage.estimator": tuple(ADVANTAGES),
    "loss.aggregation": tuple(AGGREGATIONS),
    "kl.estimator": (
        "none",
        "k1",
        "k2",
        "k3",
        "abs",
        "rho_k1",
        "rho_k2",
        "sg_rho_k2",
        "rho_k3",
        "k1+",
        "k2+",
        "k3+",
        "abs+",
    ),
    "kl.placement": (None, *get_args(Placement)),
    "kl.reset_reference_every_steps": (None,),
    "optimizer.schedule": ("constant", "cosine"),
}
MAX_SEED = 2**32 - 1


class Split(NamedTuple):
    """Nodes and GPUs of a node for the trainer and for the standalone rollout engines."""

    train_nodes: int
    train_gpus: int
    rollout_nodes: int
    rollout_gpus: int


def split_gpus(resources: Resources) -> Split:
    """Half of the nodes sample; on a single node, half of its GPUs."""
    nodes, gpus = resources.num_nodes, resources.gpus_per_node
    if nodes == 1:
        return Split(1, gpus - gpus // 2, 1, gpus // 2)
    return Split(nodes - nodes // 2, gpus, nodes // 2, gpus)


def check(cell: Cell) -> None:
    """Raises UnsupportedSetting for the first field that verl cannot express."""
    settings = cell.settings
    _known(settings)
    _bounds(settings)
    _kl(settings)
    _schedule(settings)
    if settings.max_staleness_steps:
        _staleness(settings)
    _gpus(cell)


def refuse(field: str, value: object, offered: Sequence[object], advice: str) -> NoReturn:
    raise UnsupportedSetting("verl", field, value, offered, advice)


def _known(settings: Settings) -> None:
    version = settings.backend.version
    if version not in (None, *VERSIONS):
        refuse("backend.version", version, VERSIONS, f"Set backend.version={NEWEST}.")
    if settings.kl.reset_reference_every_steps is not None:
        refuse(
            "kl.reset_reference_every_steps",
            settings.kl.reset_reference_every_steps,
            ("null",),
            "verl loads its reference policy once: leave it out, or ask a backend that resets it.",
        )
    if settings.optimizer.schedule == "linear":
        refuse(
            "optimizer.schedule",
            "linear",
            ("constant", "cosine"),
            "Set optimizer.schedule=constant or cosine.",
        )


def _bounds(settings: Settings) -> None:
    """Numbers that would be read as another setting, or that verl's dataloader cannot serve."""
    numbers = {"optimizer.max_grad_norm": settings.optimizer.max_grad_norm}
    if settings.loss.clip:
        numbers["loss.clip.high"] = settings.loss.clip.high
        numbers["loss.clip.dual"] = settings.loss.clip.dual
    for field, number in numbers.items():
        if number is not None and number >= OFF:
            refuse(field, number, (f"below {OFF:g}", "null"), f"Set {field}=null for no bound.")
    if settings.seed > MAX_SEED:
        refuse("seed", settings.seed, (f"0 to {MAX_SEED}",), "Choose a smaller seed.")
    known, batch = settings.data.num_prompts, settings.batch.num_prompts
    if known is not None and known < batch:
        refuse(
            "batch.num_prompts",
            batch,
            (f"1 to {known}",),
            "verl drops a batch that the data set cannot fill; take a smaller batch.",
        )


def _kl(settings: Settings) -> None:
    kl = settings.kl
    if "rho_" in kl.estimator and kl.placement == "reward":
        plain = kl.estimator.rpartition("rho_")[2]
        refuse(
            "kl.estimator",
            kl.estimator,
            ("k1", "k2", "k3", "abs"),
            f"The KL in the reward is the rollout policy's own, whose ratio is 1: set "
            f"kl.estimator={plain}, or kl.placement=loss.",
        )


def _schedule(settings: Settings) -> None:
    minibatches, warmup = settings.batch.num_minibatches, settings.optimizer.num_warmup_steps
    if warmup % minibatches and not settings.max_staleness_steps:
        refuse(
            "optimizer.num_warmup_steps",
            warmup,
            (f"multiples of {minibatches}",),
            "verl moves the learning rate once a rollout batch: take a multiple of "
            "batch.num_minibatches.",
        )


def _staleness(settings: Settings) -> None:
    lag, minibatches = settings.max_staleness_steps, settings.batch.num_minibatches
    if settings.backend.version not in (None, NEWEST):
        refuse(
            "max_staleness_steps",
            lag,
            (0,),
            f"Asynchronous training needs the trainer of {NEWEST}: set backend.version={NEWEST}, "
            "or max_staleness_steps=0.",
        )
    if lag % minibatches:
        refuse(
            "max_staleness_steps",
            lag,
            (f"multiples of {minibatches}",),
            "verl renews the rollout policy once a rollout batch: take a multiple of "
            "batch.num_minibatches.",
        )


def _gpus(cell: Cell) -> None:
    resources, settings = cell.resources, cell.settings
    nodes, gpus = resources.num_nodes, resources.gpus_per_node
    least = 2 if settings.max_staleness_steps and nodes == 1 else 1
    if gpus < least:
        why = "samples and trains on different GPUs" if least == 2 else "trains on GPUs"
        refuse(
            "resources.gpus_per_node",
            gpus,
            (f"{least} or more",),
            f"verl {why}: set resources.gpus_per_node.",
        )
    trainers = nodes * gpus
    if settings.max_staleness_steps:
        split = split_gpus(resources)
        trainers = split.train_nodes * split.train_gpus
    batch = settings.batch
    rollouts = batch.num_prompts // batch.num_minibatches * settings.rollout.group_size
    if rollouts % trainers:
        refuse(
            "batch.num_prompts",
            batch.num_prompts,
            (f"rollouts a minibatch % {trainers} == 0",),
            f"A minibatch has {rollouts} rollouts, which {trainers} GPUs cannot share evenly: "
            "change batch.num_prompts, rollout.group_size or resources.",
        )
