"""A site file from the answers of a cluster.

The file names the most likely partition and its limits. Comments name the alternatives.
"""

from pathlib import Path
from typing import NamedTuple

from orchestrator.files import write_text
from orchestrator.launch.slurm.cluster import (
    Cluster,
    ClusterNode,
    Partition,
    has_controller,
    read_cluster,
)


class SiteFile(NamedTuple):
    """The site file of this machine's cluster."""

    name: str
    file: Path
    is_new: bool
    """False: it was there already, and was left as it was."""


def write_site(folder: Path) -> SiteFile | None:
    """Write a site file of this machine's cluster into a folder, unless it has one. Return None
    where there is no cluster."""
    cluster = read_cluster() if has_controller() else None
    if cluster is None:
        return None
    name = "".join(c if c.isalnum() or c in "._-" else "_" for c in cluster.name) or "cluster"
    file = folder / f"{name}.yaml"
    is_new = not file.exists()
    if is_new:
        write_text(file, site_file(cluster))
    return SiteFile(name, file, is_new)


def site_file(cluster: Cluster) -> str:
    """Return the YAML of an entry of the group site/."""
    chosen = _chosen(cluster)
    lines = [
        f"# {cluster.name}, SLURM {cluster.version}, as it answered. `orch doctor --site FILE`",
        "# checks it; every field is described by `orch init --schema`.",
        "kind: slurm",
        "# runs_dir: a folder that every node sees",
        "options:",
    ]
    if chosen is None:
        return "\n".join([*lines, "  partition: null  # the cluster names none", ""])
    others = [p.name for p in cluster.partitions if p.name != chosen.name]
    lines.append(f"  partition: {quoted(chosen.name)}{_also(others)}")
    lines += _rights(cluster)
    lines += _gpus(cluster, chosen)
    hours = min(24.0, (chosen.max_minutes or 1440) / 60)
    most = "no limit" if chosen.max_minutes is None else f"at most {chosen.max_minutes / 60:g}"
    lines.append(f"  time_limit_hours: {hours:g}  # {most}; longer cells are requeued and go on")
    submit = [right.max_submit for right in cluster.rights or () if right.max_submit]
    if submit:
        lines.append(f"  max_submit_jobs: {min(submit)}  # of the account")
    lines.append(f"  # max_array_size: {cluster.max_array_size} on this cluster")
    if not cluster.accounting:
        lines.append("  # no accounting here: orch notices late a job that dies with its node")
    return "\n".join([*lines, _ENVIRONMENTS])


def _chosen(cluster: Cluster) -> Partition | None:
    """Return the partition with the most GPUs that is up. Among equals, prefer the default one,
    then the first."""

    def weight(partition: Partition) -> tuple[bool, int, float, bool]:
        nodes = cluster.nodes_of(partition.name)
        total = sum(node.gpus_of("") for node in nodes)
        return (partition.up, total, partition.max_minutes or 1e9, partition.default)

    usable = [p for p in cluster.partitions if p.name]
    default = [p for p in usable if p.default and weight(p)[:2] >= max(map(weight, usable))[:2]]
    return default[0] if default else max(usable, key=weight, default=None)


def _also(others: list[str]) -> str:
    return f"  # also: {', '.join(others)}" if others else ""


def _rights(cluster: Cluster) -> list[str]:
    rights = cluster.rights or ()
    accounts = sorted({right.account for right in rights if right.account})
    if not accounts:
        return []
    first, *others = sorted(accounts, key=lambda name: name == "root")
    granted = sorted({q for right in rights if right.account == first for q in right.qos})
    lines = [f"  account: {quoted(first)}{_also(others)}"]
    if granted:
        lines.append(f"  # qos: one of {', '.join(granted)}; without it the account's default")
    return lines


def _gpus(cluster: Cluster, chosen: Partition) -> list[str]:
    nodes = cluster.nodes_of(chosen.name)
    kinds: dict[tuple[str, int], list[ClusterNode]] = {}
    for node in nodes:
        for pair in node.gpus:
            kinds.setdefault(pair, []).append(node)
    if not kinds:
        return ["  # no GPUs in this partition"]
    best = max(kinds, key=lambda pair: (pair[1] * len(kinds[pair]), len(kinds[pair])))
    kinds_of_nodes = [f"{len(alike)} nodes with {_gres(pair)}" for pair, alike in kinds.items()]
    cpus = min(node.cpus for node in kinds[best]) // best[1]
    memory = min(node.memory_mib for node in kinds[best]) // 1024
    return [
        f"  gres: {quoted(_gres(best))}  # {'; '.join(kinds_of_nodes)}",
        f"  cpus_per_gpu: {max(1, cpus)}",
        f"  # memory_gib: {memory} a node; without it the cluster's default",
    ]


def _gres(pair: tuple[str, int]) -> str:
    return ":".join(filter(None, ("gpu", pair[0], str(pair[1]))))


_ENVIRONMENTS = """\
  # Trainers live in environments of their own. `orch env create LIBRARY@VERSION` makes
  # one; one that is there already, modules or an image are named here:
  # environments:
  #   LIBRARY@VERSION: {venv: /shared/envs/library}
  #   LIBRARY: {image: /shared/images/library.sif, setup: [module load apptainer]}
  # secrets: [HF_TOKEN]   # names only; or {HF_TOKEN: {file: ~/.hf_token}}
"""


def quoted(text: str) -> str:
    """Return a text as a YAML scalar that is read as text."""
    plain = text.replace("-", "").replace("_", "").isalnum() and text[:1].isalpha()
    words = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}
    safe = plain and text.lower() not in words
    return text if safe else "'" + text.replace("'", "''") + "'"
