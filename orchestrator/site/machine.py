"""The checks of `orch doctor` on this machine: Python, packages, backends, folders, MLflow,
SLURM.
"""

import os
import platform
import shutil
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from orchestrator import plugins
from orchestrator.data.prepared import data_dir
from orchestrator.environments.extras import extra_of, install_line
from orchestrator.errors import OrchError
from orchestrator.launch.slurm.cluster import has_controller
from orchestrator.records import Cell, Site
from orchestrator.rundir import RunFolder
from orchestrator.site.findings import SiteFinding, cluster_findings
from orchestrator.tracking.store import store_of

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


def machine_findings(site: Site, cells: Sequence[Cell], *, look: bool) -> list[SiteFinding]:
    """Return the findings, in the order in which a new user needs them.

    look: start a job that checks a node of the cluster for a few seconds.
    """
    findings = [finding for check in CHECKS for finding in check(Path(site.runs_dir))]
    return [*findings, *mlflow_store(site), *cluster(site, cells, look=look)]


def machine(_runs_dir: Path) -> list[SiteFinding]:
    """Return the version of Python and the number of cores."""
    enough = sys.version_info >= (3, 11)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return [
        SiteFinding(
            "python",
            "ok" if enough else "broken",
            platform.python_version(),
            "" if enough else "orch needs Python 3.11 or newer",
        ),
        SiteFinding("cores", "ok", str(cores)),
    ]


def packages(_runs_dir: Path) -> list[SiteFinding]:
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


def backends(_runs_dir: Path) -> list[SiteFinding]:
    """Return the releases of each backend, or why it cannot be used."""
    try:
        names = plugins.names()
    except OrchError as error:
        return [SiteFinding("backends", "broken", "not found", str(error))]
    return [_backend(name) for name in names]


def _backend(name: str) -> SiteFinding:
    try:
        return SiteFinding(f"backend {name}", "ok", ", ".join(plugins.load(name).versions))
    except OrchError as error:
        return SiteFinding(f"backend {name}", "broken", "cannot be used", str(error))


def runs_folder(runs_dir: Path) -> list[SiteFinding]:
    """Return a finding: can the runs folder be written, and how much space is free?"""
    nearest = runs_dir.absolute()
    while not nearest.exists():
        nearest = nearest.parent
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        return [
            SiteFinding(
                "runs folder",
                "broken",
                str(runs_dir),
                f"{nearest} is not a folder one can write to; choose another with "
                "site.runs_dir=...",
            )
        ]
    free = shutil.disk_usage(nearest).free / 2**30
    short = free < MIN_FREE_GIB
    return [
        SiteFinding(
            "runs folder",
            "broken" if short else "ok",
            f"{runs_dir}: {free:.0f} GiB free",
            f"free at least {MIN_FREE_GIB} GiB" if short else "",
        )
    ]


def prompts(_runs_dir: Path) -> list[SiteFinding]:
    """Return the names of the prepared prompts."""
    where = data_dir()
    prepared = sorted(about.parent.name for about in where.glob("*/about.json"))
    return [
        SiteFinding(
            "prepared prompts",
            "ok" if prepared else "missing",
            ", ".join(prepared) or f"none in {where}",
            "" if prepared else "only for libraries on a cluster: orch data prepare SPEC",
        )
    ]


def mlflow_store(site: Site) -> list[SiteFinding]:
    """Return a finding: the address of the MLflow store, and does its server answer?"""
    store = store_of(RunFolder.of(site.runs_dir, "doctor", "micro"), site.tracking_uri)
    if not store.is_server:
        return [SiteFinding("MLflow store", "ok", store.shown)]
    answers = _answers(f"{store.address}/health")
    return [
        SiteFinding(
            "MLflow server",
            "ok" if answers else "broken",
            store.shown,
            "" if answers else "start it, or unset MLFLOW_TRACKING_URI to use SQLite",
        )
    ]


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


def cluster(site: Site, cells: Sequence[Cell], *, look: bool) -> list[SiteFinding]:
    """Return the facts of the SLURM cluster. look: start a job that checks a node."""
    if site.kind == "local":
        return [SiteFinding("SLURM", "ok", "not asked: site.kind is local")]
    try:
        has_slurm = site.kind == "slurm" or has_controller()
    except OrchError as error:
        return [SiteFinding("SLURM", "broken", "does not answer", str(error))]
    if not has_slurm:
        return [
            SiteFinding("SLURM", "missing", "no cluster here", "cells run here, at micro scale")
        ]
    if shutil.which("sbatch") is None:
        return [
            SiteFinding(
                "SLURM",
                "broken",
                "no sbatch",
                "run orch on a login node of the cluster, or rehearse here with site=local",
            )
        ]
    return cluster_findings(site, cells, look=look)


CHECKS: tuple[Callable[[Path], list[SiteFinding]], ...] = (
    machine,
    packages,
    backends,
    runs_folder,
    prompts,
)
