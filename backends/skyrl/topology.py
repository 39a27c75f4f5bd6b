"""How a cell's GPUs are shared between training and sampling."""

from typing import NamedTuple

from orchestrator.errors import UnsupportedSetting
from orchestrator.settings import Resources

MOST_TOKENS = 8192
"""Of a micro batch, whose logits are the largest thing in a GPU's memory."""


class Topology(NamedTuple):
    """GPUs of the policy (the reference policy shares them) and engines of one GPU each."""

    num_nodes: int
    gpus_per_node: int
    num_engines: int
    colocated: bool

    @property
    def ranks(self) -> int:
        return self.num_nodes * self.gpus_per_node


def topology(resources: Resources, *, asynchronous: bool) -> Topology:
    """On policy all GPUs do both in turn; asynchronously half of them train and half sample.

    Raises UnsupportedSetting for resources that cannot be shared so.
    """
    nodes, gpus = resources.num_nodes, resources.gpus_per_node
    if gpus < 1:
        raise UnsupportedSetting(
            "skyrl",
            "resources.gpus_per_node",
            gpus,
            ("1 or more",),
            "Set resources.gpus_per_node to what a node of the cluster has.",
        )
    if not asynchronous:
        return Topology(nodes, gpus, nodes * gpus, colocated=True)
    if nodes % 2 == 0:
        return Topology(nodes // 2, gpus, nodes * gpus // 2, colocated=False)
    if gpus % 2 == 0:
        return Topology(nodes, gpus // 2, nodes * gpus // 2, colocated=False)
    raise UnsupportedSetting(
        "skyrl",
        "resources.gpus_per_node",
        gpus,
        ("an even number",),
        "Asynchronous training needs as many GPUs to sample as to train: make the number of nodes "
        "or of GPUs a node even.",
    )


def micro_batch(sequences: int, tokens: int) -> int:
    """Sequences of up to `tokens` tokens to hold at once: a divisor of a GPU's minibatch.

    Changes memory, not results. MOST_TOKENS is a guess, not measured.
    """
    largest = min(sequences, max(1, MOST_TOKENS // tokens))
    return next(n for n in range(largest, 0, -1) if sequences % n == 0)
