"""Check a site file against the answers of its cluster. Every fault names the field to change."""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from orchestrator.errors import did_you_mean
from orchestrator.launch.slurm.cluster import (
    Cluster,
    ClusterNode,
    Partition,
    Rights,
    gres_of,
)
from orchestrator.launch.slurm.script import CPUS_PER_GPU, ArrayResources, fitted_size
from orchestrator.settings import Resources
from orchestrator.spec.node_gpus import gpus_of_node
from orchestrator.spec.site_options import SlurmOptions


class SiteAdvice(NamedTuple):
    """One fault of a site file, or one remark on it."""

    sentence: str
    field: str = ""
    broken: bool = True
    """True if cells cannot run; False if they can run, but worse."""
    passing: bool = False
    """True if the fault may disappear without a change: the jobs would wait until then."""


def check_site(
    options: SlurmOptions, cluster: Cluster, resources: Iterable[Resources] = (), cells: int = 0
) -> list[SiteAdvice]:
    """Return faults of a site and remarks on it, for cells that need these resources on this
    cluster."""
    partition = cluster.partition(options.partition)
    advice = [*_partition(options, cluster, partition), *_rights(options, cluster, partition)]
    if partition is not None:
        wanted = list(dict.fromkeys((r.num_nodes, r.gpus_per_node) for r in resources))
        advice += _time(options, cluster, partition)
        advice += _nodes(options, cluster, partition, wanted)
    advice += _limits(options, cluster, cells)
    return list(dict.fromkeys(advice))


def field(name: str) -> str:
    """Return the path of an option in the site file."""
    return f"site.options.{name}"


def _partition(
    options: SlurmOptions, cluster: Cluster, partition: Partition | None
) -> Iterator[SiteAdvice]:
    names = [each.name for each in cluster.partitions]
    if partition is None:
        what = (
            f"there is no partition '{options.partition}'{did_you_mean(options.partition, names)}"
            if options.partition
            else "the cluster has no default partition"
        )
        yield SiteAdvice(f"{what} (there are: {', '.join(names)})", field("partition"))
        return
    if not partition.up:
        yield SiteAdvice(
            f"the partition '{partition.name}' takes no jobs at present: it is not up",
            field("partition"),
            passing=True,
        )


def _rights(
    options: SlurmOptions, cluster: Cluster, partition: Partition | None
) -> Iterator[SiteAdvice]:
    if partition is not None:
        for name, value, allowed in (
            ("account", options.account, partition.accounts),
            ("qos", options.qos, partition.qos),
        ):
            if value and allowed and value not in allowed:
                yield SiteAdvice(
                    f"the partition '{partition.name}' does not admit the {name} "
                    f"'{value}' (it admits: {', '.join(sorted(allowed))})",
                    field(name),
                )
    if not cluster.accounting or "associations" not in cluster.enforced:
        return
    if cluster.rights is None:
        return  # accounting does not answer: `cluster.faults` has the sentence
    accounts = sorted({right.account for right in cluster.rights})
    if not accounts:
        yield SiteAdvice(
            "this user has no account on the cluster; ask its administrator for one",
            field("account"),
        )
        return
    if options.account and options.account not in accounts:
        yield SiteAdvice(
            f"this user has no rights in the account '{options.account}'"
            f"{did_you_mean(options.account, accounts)} (there are: {', '.join(accounts)})",
            field("account"),
        )
        return
    granted = {name for right in _held(options, cluster) for name in right.qos}
    if options.qos and granted and options.qos not in granted:
        yield SiteAdvice(
            f"the account may not use the QOS '{options.qos}' (it may use: "
            f"{', '.join(sorted(granted))})",
            field("qos"),
        )


def _held(options: SlurmOptions, cluster: Cluster) -> list[Rights]:
    return [r for r in cluster.rights or () if options.account in (None, r.account)]


def _time(options: SlurmOptions, cluster: Cluster, partition: Partition) -> Iterator[SiteAdvice]:
    minutes = options.time_limit_hours * 60
    limits = [(partition.max_minutes, f"the partition '{partition.name}' allows")]
    limits += [
        (r.max_minutes, f"the account '{r.account}' allows") for r in _held(options, cluster)
    ]
    for limit, whose in limits:
        if limit is not None and minutes > limit:
            yield SiteAdvice(
                f"the time limit of {options.time_limit_hours:g} h is more than {whose} "
                f"({limit:g} minutes): jobs would wait for ever. Cells that need longer "
                "are requeued and go on from their checkpoint",
                field("time_limit_hours"),
                passing=options.qos is not None,  # a QOS may lift the limit of a partition
            )


def _nodes(
    options: SlurmOptions, cluster: Cluster, partition: Partition, wanted: list[tuple[int, int]]
) -> Iterator[SiteAdvice]:
    nodes = cluster.nodes_of(partition.name)
    features = {name for node in nodes for name in node.features}
    if options.constraint and options.constraint.replace("_", "").isalnum():
        if options.constraint not in features:
            yield SiteAdvice(
                f"no node of '{partition.name}' has the feature '{options.constraint}'"
                f"{did_you_mean(options.constraint, features)}",
                field("constraint"),
            )
            return
        nodes = [node for node in nodes if options.constraint in node.features]
    for num_nodes, gpus in wanted or [(1, 0)]:
        yield from _fit(options, cluster, partition, nodes, num_nodes, gpus)


def _fit(
    options: SlurmOptions,
    cluster: Cluster,
    partition: Partition,
    nodes: list[ClusterNode],
    num_nodes: int,
    gpus: int,
) -> Iterator[SiteAdvice]:
    """Yield what keeps a job of so many nodes and GPUs a node from the nodes of a partition."""
    kind, requested = gres_of(options, gpus)
    on_node = gpus_of_node(options.model_dump()) if gpus else None
    count = on_node or requested
    with_gpus = [node for node in nodes if node.gpus_of(kind) >= count]
    if count and not with_gpus:
        offered = sorted(
            {f"gpu:{k}:{n}" if k else f"gpu:{n}" for node in nodes for k, n in node.gpus}
        )
        yield SiteAdvice(
            f"no node of '{partition.name}' has {count} GPUs"
            f"{f' of type {kind}' if kind else ''} (its nodes have: "
            f"{', '.join(offered) or 'none'})",
            field("gres"),
        )
        return
    if count and gpus and count < gpus:
        yield SiteAdvice(
            f"cells need {gpus} GPUs a node (resources.gpus_per_node) and the site gives {count}",
            field("gres"),
        )
    cpus = fitted_size(options, ArrayResources(num_nodes, gpus), cluster).cpus or 0
    if gpus:
        yield from _cpus_for_gpus(options, cpus, requested)
    yield from _cpus_and_memory(options, partition, with_gpus, cpus)
    yield from _enough_nodes(partition, with_gpus, num_nodes)


def _cpus_for_gpus(options: SlurmOptions, cpus: int, gpus: int) -> Iterator[SiteAdvice]:
    option = "cpus_per_task" if options.cpus_per_task else "cpus_per_gpu"
    if 0 < cpus < gpus:
        yield SiteAdvice(
            f"a job would have {cpus} CPUs for {gpus} GPUs: each GPU takes one at least",
            field(option),
        )
    elif 0 < cpus < CPUS_PER_GPU * gpus:
        yield SiteAdvice(
            f"a job has {cpus} CPUs for {gpus} GPUs, and trainers take about {CPUS_PER_GPU} a "
            "GPU (vLLM, data, and the actors that Ray counts; site.options.ray_cpus_per_node "
            "lets Ray count more)",
            field(option),
            broken=False,
        )


def _cpus_and_memory(
    options: SlurmOptions, partition: Partition, nodes: list[ClusterNode], cpus: int
) -> Iterator[SiteAdvice]:
    if cpus and not any(node.cpus >= cpus for node in nodes):
        most = max((node.cpus for node in nodes), default=0)
        option = "cpus_per_task" if options.cpus_per_task else "cpus_per_gpu"
        yield SiteAdvice(
            f"no node of '{partition.name}' has {cpus} CPUs (the largest has {most})",
            field(option),
        )
    if options.memory_gib and not any(
        node.memory_mib >= math.ceil(options.memory_gib * 1024) for node in nodes
    ):
        memory = max((node.memory_mib for node in nodes), default=0) / 1024
        yield SiteAdvice(
            f"no node of '{partition.name}' has {options.memory_gib:g} GiB of memory "
            f"(the largest has {memory:.0f})",
            field("memory_gib"),
        )


def _enough_nodes(
    partition: Partition, nodes: list[ClusterNode], num_nodes: int
) -> Iterator[SiteAdvice]:
    usable = [node for node in nodes if node.usable]
    largest = min(len(nodes), partition.max_nodes or len(nodes))
    if num_nodes > largest:
        yield SiteAdvice(
            f"cells need {num_nodes} nodes (resources.num_nodes) and '{partition.name}' "
            f"gives {largest} that fit",
            field("partition"),
        )
    elif num_nodes > len(usable):
        yield SiteAdvice(
            f"cells need {num_nodes} nodes and only {len(usable)} of {len(nodes)} "
            f"that fit are neither down nor drained: they would wait",
            field("partition"),
            broken=False,
        )


def _limits(options: SlurmOptions, cluster: Cluster, cells: int) -> Iterator[SiteAdvice]:
    if options.max_array_size and options.max_array_size > cluster.max_array_size:
        yield SiteAdvice(
            f"an array of {options.max_array_size} is more than the cluster takes "
            f"({cluster.max_array_size}); arrays are cut to that",
            field("max_array_size"),
            broken=False,
        )
    allowed = [right.max_submit for right in _held(options, cluster) if right.max_submit]
    submit = min(allowed, default=None)
    if submit and (options.max_submit_jobs or cells) > submit:
        yield SiteAdvice(
            f"the account may have {submit} jobs in the queue at once; say so, and orch "
            "submits the others as these end",
            field("max_submit_jobs"),
            broken=options.max_submit_jobs is not None,
            passing=True,
        )
    if not cluster.accounting:
        yield SiteAdvice(
            "the cluster keeps no accounting: orch reads from files and queue how a job ended, "
            "and notices late one that dies with its node",
            broken=False,
        )
    for sentence in cluster.faults:
        yield SiteAdvice(sentence, broken=False)
