"""The findings of `orch doctor` about a cluster: one line per check, with the action to take."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from orchestrator.errors import OrchError
from orchestrator.launch.launchers import launcher_of
from orchestrator.launch.slurm.cluster import Cluster, read_cluster
from orchestrator.records import Cell, Site
from orchestrator.rundir import RunFolder
from orchestrator.site.check import SiteAdvice, check_site
from orchestrator.site.forecast import (
    containers,
    ray_shortages,
    release_of,
    time_limit_warnings,
)
from orchestrator.site.probe import NodeReport, probe_node
from orchestrator.spec.site_options import SlurmOptions, faults, slurm_options


class SiteFinding(NamedTuple):
    """One line of the table of `orch doctor`."""

    check: str
    verdict: str
    """ok, missing or broken; only `broken` fails the command."""
    found: str
    advice: str = ""


def cluster_findings(site: Site, cells: Sequence[Cell], *, look: bool = True) -> list[SiteFinding]:
    """Check a site against its cluster.

    cells: the cells to run on the cluster. look: start a small job that checks a node.
    """
    wrong = [text for text, _ in faults(site.options)]
    if wrong:
        return [SiteFinding("site file", "broken", "cannot be used", text) for text in wrong]
    options = slurm_options(site.options)
    cluster = read_cluster()
    if cluster is None:
        advice = "is this a login node of the cluster? `scontrol ping` should say UP"
        return [SiteFinding("SLURM", "broken", "the controller does not answer", advice)]
    full = [cell for cell in cells if cell.scale == "full"]
    problems = check_site(options, cluster, [cell.resources for cell in full], len(full))
    findings = [_cluster(cluster, options), _accounting(cluster)]
    folder = RunFolder.of(site.runs_dir, "doctor", "full")
    jobs = launcher_of(site, "slurm", folder).resources(full)
    findings += [SiteFinding(f"jobs of {job.cells} cells", "ok", str(job)) for job in jobs]
    late = time_limit_warnings(full, options)
    findings += [SiteFinding("time limit", "missing", sentence) for sentence in late]
    findings += map(_advice, problems)
    findings += [
        SiteFinding(f"{release} in an image", "ok", command)
        for release, command in containers(full, folder, options).items()
    ]
    findings += [
        SiteFinding("ray_cpus_per_node", "broken", str(each), "change site.options")
        for each in ray_shortages(full, folder, site.options)
    ]
    if look and not any(each.broken for each in problems):
        libraries = sorted({release_of(cell) for cell in full})
        gpus = max((cell.resources.gpus_per_node for cell in full), default=0)
        findings += _node(site, options, libraries, gpus)
    return findings


def _cluster(cluster: Cluster, options: SlurmOptions) -> SiteFinding:
    partition = cluster.partition(options.partition)
    where = f", partition {partition.name}" if partition else ""
    usable = [n for n in cluster.nodes if n.usable and partition and partition.name in n.partitions]
    return SiteFinding(
        "SLURM",
        "ok",
        f"{cluster.name} {cluster.version}{where}: {len(usable)} nodes "
        f"up, arrays up to {cluster.max_array_size}",
    )


def _accounting(cluster: Cluster) -> SiteFinding:
    if not cluster.accounting:
        return SiteFinding(
            "accounting", "missing", "off", "the ends of jobs are read from their files"
        )
    if cluster.rights is None:
        why = "; ".join(cluster.faults)
        return SiteFinding("accounting", "missing", "does not answer", f"ask again later: {why}")
    accounts = sorted({right.account for right in cluster.rights})
    return SiteFinding("accounting", "ok", f"accounts: {', '.join(accounts) or 'none'}")


def _advice(advice: SiteAdvice) -> SiteFinding:
    name = advice.field.removeprefix("site.options.") or "cluster"
    todo = f"change {advice.field}" if advice.field and advice.broken else advice.field
    return SiteFinding(name, "broken" if advice.broken else "missing", advice.sentence, todo)


def _node(
    site: Site, options: SlurmOptions, libraries: Iterable[tuple[str, str]], gpus: int
) -> Iterator[SiteFinding]:
    try:
        report = probe_node(options, Path(site.runs_dir), libraries, gpus)
    except OrchError as error:
        yield SiteFinding("runs folder", "broken", site.runs_dir, str(error))
        return
    if report.fault is not None:
        verdict = "missing" if report.fault.passing else "broken"
        yield SiteFinding("a node", verdict, "not looked at", report.fault.sentence)
        return
    yield from _node_findings(report, site, gpus)


def _node_findings(report: NodeReport, site: Site, gpus: int) -> Iterator[SiteFinding]:
    gpus_shown = f", {report.gpus} GPUs" if gpus else ""
    yield SiteFinding(
        "a node", "ok", f"{report.node}: Python {report.python}, orch importable{gpus_shown}"
    )
    yield SiteFinding(
        "runs folder there",
        "broken" if report.shared else "ok",
        report.shared or site.runs_dir,
        "choose a folder on a file system that all nodes see, with site.runs_dir"
        if report.shared
        else "",
    )
    for name, wrong in report.environments.items():
        yield SiteFinding(
            f"environment {name}",
            "broken" if wrong else "ok",
            wrong or "there",
            "trainers live in environments of their own" if wrong else "",
        )
