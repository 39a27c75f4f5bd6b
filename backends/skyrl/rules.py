"""Refuse combinations of fields that SkyRL cannot train as asked: GPUs, batches and data."""

from typing import NamedTuple

from backends.skyrl.manifest import counts_steps
from orchestrator.errors import UnsupportedSetting
from orchestrator.settings import Resources, Settings

MOST_TOKENS = 8192
"""Most tokens of a micro batch. Its logits take the most memory of a GPU."""


class GpuLayout(NamedTuple):
    """The GPUs that train, which the reference policy shares, and the engines of one GPU each."""

    num_nodes: int
    gpus_per_node: int
    num_engines: int
    colocated: bool

    @property
    def ranks(self) -> int:
        """Return the number of GPUs that train."""
        return self.num_nodes * self.gpus_per_node


def gpu_layout(resources: Resources, *, asynchronous: bool) -> GpuLayout:
    """Return the split of the GPUs: all train and sample in turn, or, asynchronously, half train.

    Raise UnsupportedSetting for resources that cannot be split so.
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
    """Raise UnsupportedSetting for a rollout batch that the data or the trainer does not allow."""
    known, batch = settings.data.num_prompts, settings.batch.num_prompts
    if known is not None and known < batch and counts_steps(version):
        raise _refused(
            "batch.num_prompts",
            batch,
            f"1 to {known}",
            f"SkyRL drops a batch that its data cannot fill: of {known} prompts it would make none "
            f"and end without a train step. Set batch.num_prompts={known} or less.",
        )
    correction = settings.loss.correction
    if correction is not None and settings.max_staleness_steps:
        raise _refused(
            "loss.correction",
            correction.kind,
            "none, where max_staleness_steps is above 0",
            "orch's asynchronous launches of SkyRL have ratios to the policy that sampled, which "
            "leave nothing to correct: leave it out, or set backend=openrlhf, whose ratios are to "
            "the trainer's own policy.",
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

    Raise UnsupportedSetting if they do not divide, because SkyRL would round down and drop prompts.
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
    """Return the size of a micro batch: a divisor of `sequences` within MOST_TOKENS.

    Sequences have up to `tokens` tokens. The size changes memory and no results. MOST_TOKENS is a
    guess, not a measurement.
    """
    largest = min(sequences, max(1, MOST_TOKENS // tokens))
    return next(n for n in range(largest, 0, -1) if sequences % n == 0)


def _refused(field: str, value: object, offered: object, advice: str) -> UnsupportedSetting:
    return UnsupportedSetting("skyrl", field, value, (offered,), advice)
