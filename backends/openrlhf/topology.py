"""Which GPUs train, which sample, and how a batch is cut for them."""

from typing import NamedTuple

from orchestrator.errors import UnsupportedSetting
from orchestrator.settings import Resources, Settings

LARGEST_MICRO_BATCH = 8
"""Sequences a GPU takes at once."""


class Topology(NamedTuple):
    num_nodes: int
    """Nodes that train; the reference policy shares their GPUs."""
    gpus_per_node: int
    num_engines: int
    """vLLM engines of one GPU each."""
    micro_train: int
    micro_rollout: int


def topology(settings: Settings, resources: Resources) -> Topology:
    """Synchronous: all models share every GPU. Asynchronous: half of them train, half sample.

    Raises UnsupportedSetting where the GPUs do not divide, or a batch does not divide over them:
    the library would leave some ranks with fewer samples and hang, or fail in DeepSpeed.
    """
    nodes, gpus = resources.num_nodes, resources.gpus_per_node
    if settings.max_staleness_steps > 0:
        nodes, gpus = _half(nodes, gpus)
    if gpus == 0:
        raise UnsupportedSetting(
            "openrlhf",
            "resources.gpus_per_node",
            resources.gpus_per_node,
            ("1 or more",),
            "Every model of a run lives on GPUs; set resources.gpus_per_node.",
        )
    workers = nodes * gpus
    per_step = settings.batch.num_prompts * settings.rollout.group_size
    per_minibatch, left = divmod(per_step, settings.batch.num_minibatches)
    if left or per_minibatch % workers:
        raise UnsupportedSetting(
            "openrlhf",
            "batch.num_prompts",
            settings.batch.num_prompts,
            (f"num_prompts x group_size / num_minibatches a multiple of {workers}",),
            f"A minibatch has {per_step / settings.batch.num_minibatches:g} rollouts and {workers} "
            "GPUs train: change batch.num_prompts, rollout.group_size or the number of GPUs.",
        )
    share = per_minibatch // workers
    micro = next(n for n in range(min(LARGEST_MICRO_BATCH, share), 0, -1) if share % n == 0)
    return Topology(nodes, gpus, workers, micro, micro)


def _half(nodes: int, gpus: int) -> tuple[int, int]:
    """Half of the nodes, or half of each node's GPUs; (.., 0) where neither divides."""
    if nodes % 2 == 0:
        return nodes // 2, gpus
    if gpus % 2:
        raise UnsupportedSetting(
            "openrlhf",
            "resources.gpus_per_node",
            gpus,
            ("an even number of nodes or of GPUs",),
            "Asynchronous training keeps half of the GPUs for sampling: give an even number, or "
            "set max_staleness_steps=0.",
        )
    return nodes, gpus // 2
