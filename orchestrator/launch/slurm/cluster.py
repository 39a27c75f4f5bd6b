"""Read the cluster of this machine: does it answer, its partitions, nodes, limits and rights.

Everything is parsed from the `key=value` and `|`-separated output of scontrol and sacctmgr, which
is the same from SLURM 20.11 to 24.11. The commands change nothing.
"""

import getpass
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field, replace
from functools import lru_cache

from orchestrator.errors import EnvironmentFault
from orchestrator.launch import processes
from orchestrator.launch.slurm.scheduler import SchedulerRefusal, call, refusal_of, settings_of
from orchestrator.spec.node_gpus import parse_gres

_WORD = re.compile(r"(\S+?)=(.*?)(?=\s[A-Za-z]\w*=|\s*\Z)")
_DOWN = ("DOWN", "DRAIN", "FAIL", "NOT_RESPONDING", "INVAL", "UNKNOWN")


@dataclass(frozen=True)
class ClusterNode:
    """One node, from `scontrol show node`."""

    name: str
    partitions: tuple[str, ...]
    cpus: int
    memory_mib: int
    gpus: tuple[tuple[str, int], ...]
    """(type, number of GPUs). The type is empty if the cluster names none."""
    features: frozenset[str]
    usable: bool
    """Neither down nor drained."""

    def gpus_of(self, kind: str) -> int:
        """Return the number of GPUs of a type, or of all types if `kind` is empty."""
        return sum(count for each, count in self.gpus if not kind or each == kind)


@dataclass(frozen=True)
class Partition:
    """One partition, from `scontrol show partition`."""

    name: str
    up: bool
    default: bool
    max_minutes: float | None
    """None: no limit."""
    max_nodes: int | None


@dataclass(frozen=True)
class Rights:
    """One association of this user: an account and its limit of jobs."""

    account: str
    max_submit: int | None


@dataclass(frozen=True)
class Cluster:
    """The cluster, as its own commands describe it."""

    name: str
    version: str
    max_array_size: int
    accounting: bool
    partitions: tuple[Partition, ...]
    nodes: tuple[ClusterNode, ...]
    rights: tuple[Rights, ...] = ()
    qos: frozenset[str] = frozenset()
    faults: tuple[str, ...] = field(default=())
    """Sentences on commands that failed."""

    def partition(self, name: str | None) -> Partition | None:
        """Return the partition of that name, or the default one for None."""
        for each in self.partitions:
            if each.name == name or (name is None and each.default):
                return each
        return None

    def names(self) -> dict[str, list[str]]:
        """Return, for fields of a site file, the cluster's names, for suggestions."""
        return {
            "partition": [each.name for each in self.partitions],
            "account": sorted({right.account for right in self.rights if right.account}),
            "qos": sorted(self.qos),
            "constraint": sorted({name for node in self.nodes for name in node.features}),
        }

    def nodes_of(self, partition: str) -> list[ClusterNode]:
        """Return the nodes of a partition."""
        return [node for node in self.nodes if partition in node.partitions]


_PING_SECONDS = 15.0


def has_controller() -> bool:
    """Return True if a SLURM controller answers. Costs nothing if `sbatch` is not on PATH.

    SLURM's commands without a configuration are not a cluster. Raise EnvironmentFault for a
    configured cluster that does not answer. Otherwise orch would rehearse cells that the cluster
    was to train.
    """
    sbatch, scontrol = shutil.which("sbatch"), shutil.which("scontrol")
    if sbatch is None or scontrol is None:
        return False
    return _ping(scontrol, os.environ.get("SLURM_CONF", ""))


# `_conf` is not used here. It is a part of the cache's key: another configuration is another
# cluster.
@lru_cache(maxsize=8)
def _ping(scontrol: str, _conf: str) -> bool:
    try:
        done = processes.finished([scontrol, "ping"], _PING_SECONDS)
        answer = f"{done.stdout}\n{done.stderr}"
    except (OSError, subprocess.TimeoutExpired) as error:
        answer = str(error)
    if " is UP" in answer:
        return True
    # The commands are installed here, without a configuration of a cluster.
    if "configuration source" in answer:
        return False
    shown = " ".join(answer.split()) or "nothing"
    raise EnvironmentFault(
        "site.kind 'auto' cannot tell where to run: SLURM is configured here and its controller "
        f"does not answer (`scontrol ping` said: {shown[:300]}). Try again when it does, or say "
        "site=local to rehearse on this machine, or site.kind=slurm to insist on the cluster"
    )


def read_cluster() -> Cluster | None:
    """Return the cluster that this machine belongs to, or None if none answers."""
    faults: list[str] = []
    config = settings_of(_output(faults, "scontrol", "show", "config"))
    if not config:
        return None
    texts = [_output(faults, "scontrol", "show", what, "-o") for what in ("partition", "node")]
    for what in (
        ("assoc", f"user={getpass.getuser()}", "format=account,maxsubmit"),
        ("qos", "format=name"),
    ):
        accounting = "none" not in config.get("AccountingStorageType", "none")
        texts.append(_output(faults, "sacctmgr", "-nP", "show", *what) if accounting else "")
    return replace(parse_cluster(config, *texts), faults=tuple(faults))


def parse_cluster(
    config: dict[str, str], partitions: str, nodes: str, rights: str, qos: str
) -> Cluster:
    """Return the cluster, from the output of its commands."""
    return Cluster(
        name=config.get("ClusterName", "cluster"),
        version=config.get("SLURM_VERSION", ""),
        max_array_size=_count(config.get("MaxArraySize")) or 1001,
        accounting="none" not in config.get("AccountingStorageType", "none"),
        partitions=tuple(_partition(_words(line)) for line in partitions.splitlines() if line),
        nodes=tuple(_node(_words(line)) for line in nodes.splitlines() if line),
        rights=tuple(_rights(line) for line in rights.splitlines() if "|" in line),
        qos=frozenset(qos.split()),
    )


def minutes(text: str | None) -> float | None:
    """Return the minutes of `days-hours:minutes:seconds`, also shortened; None for no limit."""
    if text is None or not re.fullmatch(r"[\d:-]+", text):
        return None
    days, dash, rest = text.rpartition("-")
    # sbatch(1), --time: one number is minutes, two are minutes:seconds; after days, hours come
    # first.
    parts = [float(part) for part in rest.split(":") if part]
    if dash:
        parts += [0.0] * (3 - len(parts))
    elif len(parts) == 1:
        parts = [0.0, parts[0], 0.0]
    elif len(parts) == 2:
        parts = [0.0, *parts]
    hours, mins, seconds = parts[:3]
    return float(days or 0) * 1440 + hours * 60 + mins + seconds / 60


def _words(line: str) -> dict[str, str]:
    """Return the `Key=value` words of one line; a value may have blanks."""
    return {name: value.strip() for name, value in _WORD.findall(line)}


def _partition(fields: dict[str, str]) -> Partition:
    return Partition(
        name=fields.get("PartitionName", ""),
        up=fields.get("State", "UP") == "UP",
        default=fields.get("Default") == "YES",
        max_minutes=minutes(fields.get("MaxTime")),
        max_nodes=_count(fields.get("MaxNodes")),
    )


def _node(fields: dict[str, str]) -> ClusterNode:
    state = fields.get("State", "")
    return ClusterNode(
        name=fields.get("NodeName", ""),
        partitions=tuple(fields.get("Partitions", "").split(",")),
        cpus=_count(fields.get("CPUEfctv")) or _count(fields.get("CPUTot")) or 0,
        memory_mib=_count(fields.get("RealMemory")) or 0,
        gpus=parse_gres(fields.get("Gres", "")),
        features=_names(fields.get("AvailableFeatures", "")),
        usable=not any(word in state for word in _DOWN),
    )


def _rights(line: str) -> Rights:
    account, submit = line.split("|")[:2]
    return Rights(account, _count(submit))


def _names(text: str) -> frozenset[str]:
    return frozenset(name for name in text.split(",") if name and name != "(null)")


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _output(faults: list[str], *argv: str) -> str:
    """Return the output of a command.

    If it fails, append a sentence to faults and return nothing.
    """
    try:
        return call(argv)
    except SchedulerRefusal as error:
        faults.append(f"`{' '.join(argv[:3])}`: {refusal_of(str(error), {}).sentence}")
    except EnvironmentFault as error:
        faults.append(str(error))
    return ""
