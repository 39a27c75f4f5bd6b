"""Refuse combinations of fields and GPUs that verl cannot run.

The manifest refuses values of single fields. The rules have the order of a cell's settings. Only
the first broken rule is reported.
"""

from collections.abc import Iterator
from typing import NamedTuple

from orchestrator.errors import UnsupportedSetting
from orchestrator.records import Cell
from orchestrator.settings import Resources, Settings


class GpuSplit(NamedTuple):
    """The nodes, and GPUs per node, of the trainer and of the standalone rollout engines."""

    train_nodes: int
    train_gpus: int
    rollout_nodes: int
    rollout_gpus: int


def split_gpus(resources: Resources) -> GpuSplit:
    """Return the GPUs of the trainer and of the rollout engines, for an asynchronous cell.

    Half of the nodes sample. On a single node, half of its GPUs sample.
    """
    nodes, gpus = resources.num_nodes, resources.gpus_per_node
    if nodes == 1:
        return GpuSplit(1, gpus - gpus // 2, 1, gpus // 2)
    return GpuSplit(nodes - nodes // 2, gpus, nodes // 2, gpus)


def check(cell: Cell) -> None:
    """Raise UnsupportedSetting for the first rule that a cell breaks."""
    for refusal in _broken(cell):
        raise refusal


def _broken(cell: Cell) -> Iterator[UnsupportedSetting]:
    settings = cell.settings
    yield from _data_set(settings)
    yield from _warmup(settings)
    yield from _staleness(settings)
    yield from _correction(settings)
    yield from _controller(settings)
    yield from _enough_gpus(cell)
    yield from _even_minibatches(cell)


def _controller(settings: Settings) -> Iterator[UnsupportedSetting]:
    kl = settings.kl
    if kl.controller is not None and kl.placement != "reward":
        yield _refusal(
            "kl.controller",
            kl.controller.target,
            "none, where kl.placement is not reward",
            "verl's controller moves the beta of the reward and not that of the loss: set "
            "kl.placement=reward, or leave kl.controller out.",
        )
    if kl.controller is not None and settings.max_staleness_steps > 0:
        yield _refusal(
            "kl.controller",
            kl.controller.target,
            "none, where max_staleness_steps is above 0",
            "orch has read verl's controller in its synchronous trainer: leave it out, or "
            "set max_staleness_steps=0.",
        )


def _correction(settings: Settings) -> Iterator[UnsupportedSetting]:
    correction = settings.loss.correction
    if correction is not None and settings.max_staleness_steps > 0:
        yield _refusal(
            "loss.correction",
            correction.kind,
            "none, where max_staleness_steps is above 0",
            "An asynchronous launch has ratios to the engine itself (bypass_mode), where verl "
            "computes no such weight: leave it out, or set max_staleness_steps=0.",
        )


def _data_set(settings: Settings) -> Iterator[UnsupportedSetting]:
    known, batch = settings.data.num_prompts, settings.batch.num_prompts
    if known is not None and known < batch:
        yield _refusal(
            "batch.num_prompts",
            batch,
            f"1 to {known}",
            "verl drops a batch that the data set cannot fill; take a smaller batch.",
        )


def _warmup(settings: Settings) -> Iterator[UnsupportedSetting]:
    minibatches, warmup = settings.batch.num_minibatches, settings.optimizer.num_warmup_steps
    if warmup % minibatches and not settings.max_staleness_steps:
        yield _refusal(
            "optimizer.num_warmup_steps",
            warmup,
            f"multiples of {minibatches}",
            "verl moves the learning rate once a rollout batch: take a multiple of "
            "batch.num_minibatches.",
        )


def _staleness(settings: Settings) -> Iterator[UnsupportedSetting]:
    steps, minibatches = settings.max_staleness_steps, settings.batch.num_minibatches
    if steps % minibatches:
        yield _refusal(
            "max_staleness_steps",
            steps,
            f"multiples of {minibatches}",
            "verl renews the rollout policy once a rollout batch: take a multiple of "
            "batch.num_minibatches.",
        )


def _enough_gpus(cell: Cell) -> Iterator[UnsupportedSetting]:
    resources = cell.resources
    split = bool(cell.settings.max_staleness_steps) and resources.num_nodes == 1
    least = 2 if split else 1
    if resources.gpus_per_node < least:
        why = "samples and trains on different GPUs" if split else "trains on GPUs"
        yield _refusal(
            "resources.gpus_per_node",
            resources.gpus_per_node,
            f"{least} or more",
            f"verl {why}: set resources.gpus_per_node.",
        )


def _even_minibatches(cell: Cell) -> Iterator[UnsupportedSetting]:
    settings, resources, batch = cell.settings, cell.resources, cell.settings.batch
    trainers = resources.num_nodes * resources.gpus_per_node
    if settings.max_staleness_steps:
        split = split_gpus(resources)
        trainers = split.train_nodes * split.train_gpus
    rollouts = batch.num_prompts // batch.num_minibatches * settings.rollout.group_size
    if rollouts % trainers:
        yield _refusal(
            "batch.num_prompts",
            batch.num_prompts,
            f"rollouts a minibatch % {trainers} == 0",
            f"A minibatch has {rollouts} rollouts, which {trainers} GPUs cannot share evenly: "
            "change batch.num_prompts, rollout.group_size or resources.",
        )


def _refusal(field: str, value: object, offered: str, advice: str) -> UnsupportedSetting:
    return UnsupportedSetting("verl", field, value, (offered,), advice)
