"""The GPUs of a site's nodes: what `gres` says, what a job requests, and how cells are laid out."""

import re
from collections.abc import Mapping

from orchestrator.settings import Resources

_GPUS = re.compile(r"([^:(,]+)(?::([^:(,]+))?(?::(\d+))?(?:\([^)]*\))?")


def parse_gres(gres: str) -> tuple[tuple[str, int], ...]:
    """Return (type, number) for each kind of GPU in `gpu:a100:4(S:0-1),shard:8`."""
    kinds = []
    for name, kind, count in _GPUS.findall(gres):
        if name.strip() == "gpu":
            # `gpu:4` has no type: the expression has read the number as one.
            if kind.isdigit() and not count:
                kind, count = "", kind
            kinds.append((kind, int(count or 1)))
    return tuple(kinds)


def gpus_of_node(options: Mapping[str, object]) -> int | None:
    """Return the GPUs that a node of the site has, by `gres`; None if the site does not say."""
    kinds = parse_gres(str(options.get("gres") or ""))
    return kinds[0][1] if kinds else None


def requested_gres(gres: str | None, gpus: int) -> str:
    """Return the `gres` of a job: that of the site with so many GPUs in the place of the node's."""
    parts = (gres or f"gpu:{gpus}").split(",")
    of_gpus = [
        ":".join(["gpu", *([kind] if kind else []), str(gpus)])
        for kind, _ in parse_gres(",".join(parts))[:1]
    ]
    return ",".join([*of_gpus, *(part for part in parts if not parse_gres(part))])


def laid_out(resources: Resources, options: Mapping[str, object]) -> Resources:
    """Return resources with the same number of GPUs, on as few nodes of the site as hold them.

    Raise ValueError if full nodes cannot hold them. A site that does not say what a node has
    changes nothing.
    """
    gpus, on_node = resources.num_nodes * resources.gpus_per_node, gpus_of_node(options)
    if not gpus or not on_node:
        return resources
    reserved = on_node if options.get("exclusive") else resources.reserved_gpus_per_node
    nodes, rest = divmod(gpus, on_node)
    if gpus <= on_node:
        nodes, on_node, rest = 1, gpus, 0
    if rest:
        raise ValueError(
            f"resources ask for {gpus} GPUs ({resources.num_nodes} x {resources.gpus_per_node}), "
            f"and a node of this site has {on_node} (site.options.gres): take at most {on_node}, "
            f"or a multiple of {on_node}"
        )
    return resources.model_copy(
        update={
            "num_nodes": nodes,
            "gpus_per_node": on_node,
            "reserved_gpus_per_node": reserved,
        }
    )
