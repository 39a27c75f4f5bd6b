"""orch doctor: what this machine offers, and what to fix."""

import os
import platform
import shutil
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli import common
from orchestrator.cli.common import print_json, print_table
from orchestrator.site.findings import SiteFinding

if TYPE_CHECKING:
    from orchestrator.records import Cell, Site

PACKAGES = {
    "hydra-core": "",
    "mlflow": "",
    "optuna": "",
    "submitit": "",
    "torch": "micro",
    "transformers": "micro",
    "safetensors": "micro",
    "lm-eval": "eval",
    "math-verify": "eval",
}
"""Distribution -> the extra that brings it."""
MIN_FREE_GIB = 2


@click.command(short_help="Check this machine and say what to fix.")
@click.argument("spec", required=False, metavar="[SPEC]")
@common.overrides
@click.option(
    "--site",
    "site_file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="A site file to check, instead of the spec's.",
)
@click.option("--no-probe", is_flag=True, help="Ask the cluster only; start no job on a node.")
@common.as_json
@common.runs_dir
def command(
    spec: str | None,
    overrides: tuple[str, ...],
    site_file: Path | None,
    no_probe: bool,
    as_json: bool,
    runs_dir: Path,
) -> int:
    """Check Python, packages, the embedded trainer, the runs folder, MLflow and SLURM.

    With SPEC, or --site FILE, the cluster it names is asked whether it has what the cells need, and
    a job of a few seconds looks at a node: does it see the runs folder, orch, the trainers'
    environments? Exits 1 if something that `orch run` needs is broken.
    """
    site, cells = _asked(spec, overrides, site_file, runs_dir)
    findings = [finding for check in CHECKS for finding in check(Path(site.runs_dir))]
    findings += mlflow_store(site)
    findings += cluster(site, cells, look=not no_probe)
    if as_json:
        print_json([f._asdict() for f in findings])
    else:
        print_table(("check", "", "found", "what to do"), findings)
    return int(any(f.verdict == "broken" for f in findings))


def _asked(
    spec: str | None, overrides: tuple[str, ...], site_file: Path | None, runs_dir: Path
) -> "tuple[Site, Sequence[Cell]]":
    """Return the site, and the cells that are to run there."""
    from orchestrator.records import Site

    if spec is None and overrides:
        raise click.UsageError("KEY=VALUE changes a spec: name one")
    cells: Sequence[Cell] = ()
    site = Site(runs_dir=str(runs_dir))
    if spec is not None:
        from orchestrator.spec import load
        from orchestrator.spec.expand import expand

        loaded = load(Path(spec), overrides)
        site, cells = loaded.site, expand(loaded)
    if site_file is not None:
        from orchestrator.spec.site import read_site

        site = read_site(site_file)
        if "runs_dir" not in site.model_fields_set:
            site = site.model_copy(update={"runs_dir": str(runs_dir)})
    return site, cells


def machine(_runs_dir: Path) -> list[SiteFinding]:
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
    found = []
    for name, extra in PACKAGES.items():
        try:
            found.append(SiteFinding(name, "ok", version(name)))
        except PackageNotFoundError:
            wanted = f"orch-rl[{extra}]" if extra else "orch-rl"
            found.append(
                SiteFinding(
                    name,
                    "broken",
                    "not installed",
                    f"pip install '{wanted}', or python3 bootstrap.py setup",
                )
            )
    return found


def backends(_runs_dir: Path) -> list[SiteFinding]:
    from orchestrator import plugins
    from orchestrator.errors import OrchError

    try:
        names = plugins.names()
    except OrchError as error:
        return [SiteFinding("backends", "broken", "not found", str(error))]
    return [_backend(name) for name in names]


def _backend(name: str) -> SiteFinding:
    from orchestrator import plugins
    from orchestrator.errors import OrchError

    try:
        return SiteFinding(f"backend {name}", "ok", ", ".join(plugins.load(name).versions))
    except OrchError as error:
        return SiteFinding(f"backend {name}", "broken", "cannot be used", str(error))


def runs_folder(runs_dir: Path) -> list[SiteFinding]:
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
    from orchestrator.data.prepared import data_dir

    where = data_dir()
    found = sorted(about.parent.name for about in where.glob("*/about.json"))
    return [
        SiteFinding(
            "prepared prompts",
            "ok" if found else "missing",
            ", ".join(found) or f"none in {where}",
            "" if found else "only for libraries on a cluster: orch data prepare SPEC",
        )
    ]


def mlflow_store(site: "Site") -> list[SiteFinding]:
    from orchestrator.rundir import RunFolder
    from orchestrator.tracking.store import store_of

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
    except HTTPError:  # it answers, if only to ask who we are
        return True
    except (OSError, ValueError):
        return False


def cluster(site: "Site", cells: "Sequence[Cell]", *, look: bool) -> list[SiteFinding]:
    from orchestrator.errors import OrchError
    from orchestrator.launch.slurm.cluster import has_controller
    from orchestrator.site.findings import cluster_findings

    if site.kind == "local":
        return [SiteFinding("SLURM", "ok", "not asked: site.kind is local")]
    try:
        here = site.kind == "slurm" or has_controller()
    except OrchError as error:
        return [SiteFinding("SLURM", "broken", "does not answer", str(error))]
    if not here:
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
