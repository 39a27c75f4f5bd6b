"""What SkyRL refuses, or should, of fields taken together: GPUs, batches and data."""

from typing import NamedTuple

from backends.skyrl.manifest import counts_steps
from orchestrator.errors import UnsupportedSetting
from orchestrator.settings import Resources, Settings

MOST_TOKENS = 8192
"""Of a micro batch, whose logits are the largest thing in a GPU's memory."""


class GpuLayout(NamedTuple):
    """GPUs of the policy (the reference policy shares them) and engines of one GPU each."""

    num_nodes: int
    gpus_per_node: int
    num_engines: int
    colocated: bool

    @property
    def ranks(self) -> int:
        """GPUs that train."""
        return self.num_nodes * self.gpus_per_node


def gpu_layout(resources: Resources, *, asynchronous: bool) -> GpuLayout:
    """Share the GPUs. On policy all of them do both in turn; asynchronously half of them train.

    Raise UnsupportedSetting for resources that cannot be shared so.
    """
    nodes, gpus = resources.num_nodes, resources.gpus_per_node
    if gpus < 1:
        raise _refused(
            "resources.gpus_per_node",
            gpus,
            "1 or more",
            "Set resources.gpus_per_node to what a node of the cluster has.",
        )
    if not asynchronous:
        return GpuLayout(nodes, gpus, nodes * gpus, colocated=True)
    if nodes % 2 == 0:
        return GpuLayout(nodes // 2, gpus, nodes * gpus // 2, colocated=False)
    if gpus % 2 == 0:
        return GpuLayout(nodes, gpus // 2, nodes * gpus // 2, colocated=False)
    raise _refused(
        "resources.gpus_per_node",
        gpus,
        "an even number",
        "Asynchronous training needs as many GPUs to sample as to train: make the number of nodes "
        "or of GPUs a node even.",
    )


def check(settings: Settings, version: str) -> None:
    """Raise UnsupportedSetting for a rollout batch that the data or the trainer cannot have."""
    known, batch = settings.data.num_prompts, settings.batch.num_prompts
    if known is not None and known < batch and counts_steps(version):
        raise _refused(
            "batch.num_prompts",
            batch,
            f"1 to {known}",
            f"SkyRL drops a batch that its data cannot fill: of {known} prompts it would make none "
            f"and end without a train step. Set batch.num_prompts={known} or less.",
        )
    if settings.max_staleness_steps and settings.batch.num_minibatches > 1:
        raise _refused(
            "batch.num_minibatches",
            settings.batch.num_minibatches,
            1,
            "SkyRL's asynchronous trainer makes one update a rollout batch. Set "
            "batch.num_minibatches=1, or max_staleness_steps=0.",
        )


def sequences_per_gpu(settings: Settings, layout: GpuLayout) -> int:
    """Return the sequences of a minibatch on each GPU that trains.

    Raise UnsupportedSetting where they do not divide: SkyRL would round down and drop prompts.
    """
    prompts = settings.batch.num_prompts // settings.batch.num_minibatches
    each, rest = divmod(prompts * settings.rollout.group_size, layout.ranks)
    if rest:
        raise _refused(
            "batch.num_prompts",
            settings.batch.num_prompts,
            f"minibatches whose rollouts divide by {layout.ranks}",
            f"SkyRL drops prompts that do not divide among the {layout.ranks} GPUs that train: "
            "change batch.num_prompts, rollout.group_size or the resources.",
        )
    return each


def micro_batch(sequences: int, tokens: int) -> int:
    """Return how many sequences of up to `tokens` tokens to hold at once: a divisor of `sequences`.

    Changes memory, not results. MOST_TOKENS is a guess, not measured.
    """
    largest = min(sequences, max(1, MOST_TOKENS // tokens))
    return next(n for n in range(largest, 0, -1) if sequences % n == 0)


def _refused(field: str, value: object, offered: object, advice: str) -> UnsupportedSetting:
    return UnsupportedSetting("skyrl", field, value, (offered,), advice)
