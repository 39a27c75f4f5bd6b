"""What `orch doctor` finds of a cluster: each check a line, with what to do."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from orchestrator import registry
from orchestrator.errors import OrchError
from orchestrator.launch.slurm.options import SlurmOptions, faults, slurm_options
from orchestrator.site.check import Advice, check
from orchestrator.site.cluster import Cluster, ask
from orchestrator.site.probe import Seen, probe
from orchestrator.types import Cell, Site


class Finding(NamedTuple):
    check: str
    verdict: str
    """ok, missing or broken; only `broken` fails the command."""
    found: str
    advice: str = ""


def of_cluster(site: Site, cells: Sequence[Cell], *, look: bool = True) -> list[Finding]:
    """A site against its cluster. cells: those that are to run there, with what they need; look:
    whether a small job looks at a node."""
    wrong = [text for text, _ in faults(site.options)]
    if wrong:
        return [Finding("site file", "broken", "cannot be used", text) for text in wrong]
    options = slurm_options(site.options)
    cluster = ask()
    if cluster is None:
        advice = "is this a login node of the cluster? `scontrol ping` should say UP"
        return [Finding("SLURM", "broken", "the controller does not answer", advice)]
    full = [cell for cell in cells if cell.scale == "full"]
    told = check(options, cluster, [cell.resources for cell in full], len(full))
    found = [_cluster(cluster, options), _accounting(cluster), *map(_advice, told)]
    if look and not any(advice.broken for advice in told):
        libraries = sorted({release_of(cell) for cell in full})
        gpus = max((cell.resources.gpus_per_node for cell in full), default=0)
        found += _node(site, options, libraries, gpus)
    return found


def release_of(cell: Cell) -> tuple[str, str]:
    """The library and release that a cell trains in."""
    ref = cell.settings.backend
    if ref.version:
        return ref.name, ref.version
    try:
        return ref.name, registry.load(ref.name).versions[0]
    except OrchError:
        return ref.name, ""


def _cluster(cluster: Cluster, options: SlurmOptions) -> Finding:
    partition = cluster.partition(options.partition)
    where = f", partition {partition.name}" if partition else ""
    usable = [n for n in cluster.nodes if n.usable and partition and partition.name in n.partitions]
    return Finding("SLURM", "ok", f"{cluster.name} {cluster.version}{where}: {len(usable)} nodes "
                   f"up, arrays up to {cluster.max_array_size}")  # fmt: skip


def _accounting(cluster: Cluster) -> Finding:
    if not cluster.accounting:
        return Finding("accounting", "missing", "off", "the ends of jobs are read from their files")
    accounts = sorted({right.account for right in cluster.rights})
    return Finding("accounting", "ok", f"accounts: {', '.join(accounts) or 'none'}")


def _advice(advice: Advice) -> Finding:
    name = advice.field.removeprefix("site.options.") or "cluster"
    todo = f"change {advice.field}" if advice.field and advice.broken else advice.field
    return Finding(name, "broken" if advice.broken else "missing", advice.sentence, todo)


def _node(
    site: Site, options: SlurmOptions, libraries: Iterable[tuple[str, str]], gpus: int
) -> Iterator[Finding]:
    try:
        seen = probe(options, Path(site.runs_dir), libraries, gpus)
    except OrchError as error:
        yield Finding("runs folder", "broken", site.runs_dir, str(error))
        return
    if seen.fault is not None:
        verdict = "missing" if seen.fault.passing else "broken"
        yield Finding("a node", verdict, "not looked at", seen.fault.sentence)
        return
    yield from _seen(seen, site, gpus)


def _seen(seen: Seen, site: Site, gpus: int) -> Iterator[Finding]:
    held = f", {seen.gpus} GPUs" if gpus else ""
    yield Finding("a node", "ok", f"{seen.node}: Python {seen.python}, orch importable{held}")
    yield Finding(
        "runs folder there", "broken" if seen.shared else "ok", seen.shared or site.runs_dir,
        "choose a folder on a file system that all nodes see, with site.runs_dir" if seen.shared
        else "",
    )  # fmt: skip
    for name, wrong in seen.environments.items():
        yield Finding(f"environment {name}", "broken" if wrong else "ok", wrong or "there",
                      "trainers live in environments of their own" if wrong else "")  # fmt: skip
