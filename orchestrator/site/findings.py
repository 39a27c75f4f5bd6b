"""The findings of `orch doctor`: one line per check, with the action to take.

`machine_findings` checks this machine (Python, packages, backends, folders, MLflow, SLURM), and
`cluster_findings` a cluster.
"""

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from orchestrator import plugins
from orchestrator.environments.extras import extra_of, install_line
from orchestrator.environments.lock import installed, locks_of
from orchestrator.errors import NoLocksError, OrchError
from orchestrator.files import take_lock
from orchestrator.launch import processes
from orchestrator.launch.disk_use import disk_of_checkpoints, nearest
from orchestrator.launch.hub_data import SiteFinding, hub_findings
from orchestrator.launch.launcher import PlannedJob
from orchestrator.launch.launchers import planned_jobs
from orchestrator.launch.local import gpus_of_cell
from orchestrator.launch.node.gpus import machine_gpus
from orchestrator.launch.ray.server import server_of
from orchestrator.launch.slurm.cluster import Cluster, has_controller, read_cluster
from orchestrator.launch.slurm.script import CPUS_PER_GPU
from orchestrator.library.protocol import EmbeddedTrainer
from orchestrator.records import Cell, EvaluationSpec, Site
from orchestrator.rundir import RunFolder
from orchestrator.site.check import never_started, refused
from orchestrator.site.forecast import time_limit_warnings
from orchestrator.site.preflight import preflight
from orchestrator.site.probe import probe_node
from orchestrator.spec.site_options import SlurmOptions, faults, ray_options, slurm_options
from orchestrator.tracking.store import store_of


def cluster_findings(
    site: Site,
    cells: Sequence[Cell],
    evaluation: EvaluationSpec | None = None,
    *,
    look: bool = True,
) -> list[SiteFinding]:
    """Check a site against its cluster.

    cells: the cells to run on the cluster. evaluation: the tasks whose data the jobs read. look:
    start a small job that checks a node.
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
    problems = [*never_started(options, cluster, [cell.resources for cell in full])]
    problems += dict.fromkeys(refused(options, cluster, full))
    findings = [_cluster(cluster, options)]
    findings += [SiteFinding("cluster", "missing", fault) for fault in cluster.faults]
    folder = RunFolder.of(site.runs_dir, "doctor", "full")
    findings += map(_jobs, planned_jobs(full, site, "slurm", folder))
    late = time_limit_warnings(full, options)
    findings += [SiteFinding("time limit", "missing", sentence) for sentence in late]
    findings += problems
    if look and not any(each.verdict == "broken" for each in problems):
        findings += probe_node(site, full, evaluation)
    return findings


def _cluster(cluster: Cluster, options: SlurmOptions) -> SiteFinding:
    partition = cluster.partition(options.partition)
    where = f", partition {partition.name}" if partition else ""
    nodes = cluster.nodes_of(partition.name) if partition else []
    found = (
        f"{cluster.name} {cluster.version}{where}: {sum(node.usable for node in nodes)} nodes up, "
        f"arrays up to {cluster.max_array_size}"
    )
    return SiteFinding("SLURM", "ok", found if cluster.accounting else f"{found}, no accounting")


def _jobs(job: PlannedJob) -> SiteFinding:
    check, gpus = f"jobs of {job.cells} cells", job.gpus_per_node
    if job.cpus is not None and job.cpus < CPUS_PER_GPU * gpus:
        advice = f"trainers take about {CPUS_PER_GPU} CPUs a GPU: site.options.cpus_per_gpu"
        return SiteFinding(check, "missing", str(job), advice)
    return SiteFinding(check, "ok", str(job))


PACKAGES = (
    "hydra-core",
    "mlflow",
    "optuna",
    "submitit",
    "torch",
    "transformers",
    "safetensors",
    "lm-eval",
    "math-verify",
)
"""Distributions without which a command of orch cannot work."""
MIN_FREE_GIB = 2


def machine_findings(
    site: Site,
    cells: Sequence[Cell],
    evaluation: EvaluationSpec | None,
    *,
    look: bool,
) -> list[SiteFinding]:
    """Return the findings, in the order in which a new user needs them.

    evaluation: the tasks whose data the jobs read.
    look: start a job that checks a node of the cluster for a few seconds.
    """
    runs_dir = Path(site.runs_dir)
    findings = [
        SiteFinding("python", "ok", platform.python_version()),
        SiteFinding("cores", "ok", str(processes.cores())),
        *packages(),
        *backends(),
        runs_folder(runs_dir),
    ]
    findings += disk_of_checkpoints(runs_dir, cells)
    on_cluster = cluster(site, cells, evaluation, look=look)
    by_node = {each.check for each in on_cluster}
    at_hand = hub_findings(site, cells, evaluation)
    # A node may see another disk than this machine: what it reports counts.
    findings += [each for each in at_hand if each.check not in by_node]
    return [*findings, *mlflow_store(site), *on_cluster]


def packages() -> list[SiteFinding]:
    """Return the version of each distribution in PACKAGES, or how to install it."""
    findings = []
    for name in PACKAGES:
        try:
            findings.append(SiteFinding(name, "ok", version(name)))
        except PackageNotFoundError:
            extra = extra_of(name)
            remedy = install_line(extra) if extra else "pip install orch-rl"
            findings.append(SiteFinding(name, "broken", "not installed", remedy))
    return findings


def backends() -> list[SiteFinding]:
    """Return the releases of each backend, or why it cannot be used."""
    try:
        names = plugins.names()
    except OrchError as error:
        return [SiteFinding("backends", "broken", "not found", str(error))]
    return [_backend(name) for name in names]


def _backend(name: str) -> SiteFinding:
    check = f"backend {name}"
    try:
        backend = plugins.load(name)
        found = ", ".join(backend.versions)
        if isinstance(backend, EmbeddedTrainer) and (by := backend.computed_by()):
            found += f", by {by}"
        here = [f"{each.version} ({each.flavour})" for each in installed() if each.library == name]
        if here or not locks_of(name):
            found += f"; installed on this machine: {', '.join(here)}" if here else ""
            return SiteFinding(check, "ok", found)
        advice = f"orch env create {name}@{backend.versions[0]}, where its cells run"
        found += ": launches are written, none is installed"
        return SiteFinding(check, "missing", found, advice)
    except OrchError as error:
        return SiteFinding(check, "broken", "cannot be used", str(error))


def runs_folder(runs_dir: Path) -> SiteFinding:
    """Return a finding: can the runs folder be written, does it have locks, how much is free?"""
    check, place = "runs folder", nearest(runs_dir)
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        advice = f"{place} is no folder one can write to; choose another with site.runs_dir=..."
        return SiteFinding(check, "broken", str(runs_dir), advice)
    try:
        with tempfile.NamedTemporaryFile(dir=place) as file:
            take_lock(file)
    except NoLocksError as error:
        return SiteFinding(check, "broken", str(runs_dir), str(error).partition(": ")[2])
    free = shutil.disk_usage(place).free / 2**30
    found = f"{runs_dir}: {free:.0f} GiB free"
    if free < MIN_FREE_GIB:
        return SiteFinding(check, "broken", found, f"free at least {MIN_FREE_GIB} GiB")
    return SiteFinding(check, "ok", found)


def mlflow_store(site: Site) -> list[SiteFinding]:
    """Return a finding: the address of the MLflow store, and does its server answer?"""
    store = store_of(RunFolder.of(site.runs_dir, "doctor", "micro"), site.tracking_uri)
    if not store.is_server:
        return [SiteFinding("MLflow store", "ok", store.shown)]
    if _answers(f"{store.address}/health"):
        return [SiteFinding("MLflow server", "ok", store.shown)]
    advice = "start it, or unset MLFLOW_TRACKING_URI to use SQLite"
    return [SiteFinding("MLflow server", "broken", store.shown, advice)]


def _answers(url: str) -> bool:
    from urllib.error import HTTPError
    from urllib.request import urlopen

    try:
        with urlopen(url, timeout=5):  # noqa: S310 - http(s) only: Store.is_server
            return True
    except HTTPError:  # it is up, even if it only requires a login
        return True
    except (OSError, ValueError):
        return False


def _ray(site: Site, cells: Sequence[Cell]) -> Iterator[SiteFinding]:
    """Yield the facts of the Ray of a site: its job server, its nodes, what jobs claim."""
    try:
        options = ray_options(site.options)
        server = server_of(options)
        release, known, totals = server.release(), server.jobs(), server.totals()
    except OrchError as error:
        yield SiteFinding("Ray", "broken", "cannot be used", str(error))
        return
    at_work = sum(not job.is_over for job in known.values())
    yield SiteFinding(
        "Ray", "ok", f"{release} at {server.address}, {len(known)} jobs, {at_work} at work"
    )
    full = [cell for cell in cells if cell.scale == "full"]
    gpus = max((c.resources.num_nodes * c.resources.gpus_per_node for c in full), default=0)
    if totals is not None:
        has = f"{totals.nodes} nodes, {totals.cpus:g} CPUs, {totals.gpus:g} GPUs"
        few = "" if totals.gpus >= gpus else f"a cell needs {gpus} GPUs: resources.gpus_per_node"
        yield SiteFinding("nodes of the Ray", "broken" if few else "ok", has, few)
    folder = RunFolder.of(site.runs_dir, "doctor", "full")
    for job in planned_jobs(full, site, "ray", folder):
        yield SiteFinding(f"jobs of {job.cells} cells", "ok", str(job))


def _machine_with_gpus(
    site: Site, cells: Sequence[Cell], evaluation: EvaluationSpec | None
) -> Iterator[SiteFinding]:
    """Yield the facts of this machine's GPUs, and what a start of the cells here would find."""
    gpus = machine_gpus()
    most = max(map(gpus_of_cell, cells), default=0)
    yield SiteFinding(
        "GPUs",
        "ok" if len(gpus) >= most else "broken",
        f"{len(gpus)} ({gpus[0].name}), {sum(each.is_free for each in gpus)} free"
        if gpus
        else "nvidia-smi lists none",
        "" if len(gpus) >= most else f"a cell asks for {most}: lower resources.gpus_per_node",
    )
    runs_dir = Path(site.runs_dir)
    yield from preflight(site, cells, evaluation, runs_dir if runs_dir.is_dir() else Path())


def cluster(
    site: Site, cells: Sequence[Cell], evaluation: EvaluationSpec | None, *, look: bool
) -> list[SiteFinding]:
    """Return the facts of the SLURM cluster. look: start a job that checks a node."""
    if site.kind == "local":
        return [SiteFinding("SLURM", "ok", "not asked: site.kind is local")]
    if site.kind == "gpus":
        return [*_machine_with_gpus(site, cells, evaluation)]
    if site.kind == "ray":
        return [*_ray(site, cells)]
    try:
        has_slurm = site.kind == "slurm" or has_controller()
    except OrchError as error:
        return [SiteFinding("SLURM", "broken", "does not answer", str(error))]
    if not has_slurm and machine_gpus():
        return [*_machine_with_gpus(site, cells, evaluation)]
    if not has_slurm:
        here = "cells run here, at micro scale"
        return [SiteFinding("SLURM", "missing", "no cluster here", here)]
    if shutil.which("sbatch") is None:
        advice = "run orch on a login node of the cluster, or rehearse here with site=local"
        return [SiteFinding("SLURM", "broken", "no sbatch", advice)]
    return cluster_findings(site, cells, evaluation, look=look)
