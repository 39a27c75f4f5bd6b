"""orch doctor: what this machine offers, and what to fix."""

import os
import platform
import shutil
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import click

from orchestrator.cli import options
from orchestrator.cli.output import print_json, print_table

PACKAGES = {
    "hydra-core": "", "mlflow": "", "optuna": "", "submitit": "",
    "torch": "micro", "transformers": "micro", "safetensors": "micro",
    "lm-eval": "eval", "math-verify": "eval",
}  # fmt: skip
"""Distribution -> the extra that brings it."""
MIN_FREE_GIB = 2


class Finding(NamedTuple):
    check: str
    verdict: str
    """ok, missing or broken; only `broken` fails the command."""
    found: str
    advice: str = ""


@click.command(short_help="Check this machine and say what to fix.")
@options.as_json
@options.runs_dir
def command(as_json: bool, runs_dir: Path) -> int:
    """Check Python, packages, the embedded trainer, the runs folder, MLflow and SLURM.

    Exits 1 if something that `orch run` needs on this machine is broken.
    """
    findings = [finding for check in CHECKS for finding in check(runs_dir)]
    if as_json:
        print_json([f._asdict() for f in findings])
    else:
        print_table(("check", "", "found", "what to do"), findings)
    return int(any(f.verdict == "broken" for f in findings))


def machine(_runs_dir: Path) -> list[Finding]:
    enough = sys.version_info >= (3, 11)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return [
        Finding("python", "ok" if enough else "broken", platform.python_version(),
                "" if enough else "orch needs Python 3.11 or newer"),
        Finding("cores", "ok", str(cores)),
    ]  # fmt: skip


def packages(_runs_dir: Path) -> list[Finding]:
    found = []
    for name, extra in PACKAGES.items():
        try:
            found.append(Finding(name, "ok", version(name)))
        except PackageNotFoundError:
            wanted = f"orch-rl[{extra}]" if extra else "orch-rl"
            found.append(
                Finding(name, "broken", "not installed", f"pip install '{wanted}', or "
                        "python3 bootstrap.py setup")
            )  # fmt: skip
    return found


def backends(_runs_dir: Path) -> list[Finding]:
    from orchestrator import registry
    from orchestrator.errors import OrchError

    try:
        names = registry.names()
    except OrchError as error:
        return [Finding("backends", "broken", "shadowed", str(error))]
    return [
        Finding(f"backend {name}", "ok", ", ".join(registry.load(name).versions)) for name in names
    ]


def runs_folder(runs_dir: Path) -> list[Finding]:
    nearest = runs_dir.absolute()
    while not nearest.exists():
        nearest = nearest.parent
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        return [Finding("runs folder", "broken", str(runs_dir),
                        f"{nearest} is not a folder one can write to; choose another with "
                        "site.runs_dir=...")]  # fmt: skip
    free = shutil.disk_usage(nearest).free / 2**30
    short = free < MIN_FREE_GIB
    return [
        Finding("runs folder", "broken" if short else "ok", f"{runs_dir}: {free:.0f} GiB free",
                f"free at least {MIN_FREE_GIB} GiB" if short else "")
    ]  # fmt: skip


def mlflow_store(runs_dir: Path) -> list[Finding]:
    from orchestrator.rundir import RunFolder
    from orchestrator.tracking.store import store_of

    store = store_of(RunFolder.of(runs_dir, "doctor", "micro"), None)
    if not store.is_server:
        return [Finding("MLflow store", "ok", store.shown)]
    answers = _answers(f"{store.address}/health")
    return [
        Finding("MLflow server", "ok" if answers else "broken", store.shown,
                "" if answers else "start it, or unset MLFLOW_TRACKING_URI to use SQLite")
    ]  # fmt: skip


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


def cluster(_runs_dir: Path) -> list[Finding]:
    sbatch = shutil.which("sbatch")
    if sbatch:
        return [Finding("SLURM", "ok", sbatch, "this orch launches on this machine only: "
                        "site=local")]  # fmt: skip
    return [Finding("SLURM", "missing", "no sbatch", "cells run here, at micro scale")]


CHECKS: tuple[Callable[[Path], list[Finding]], ...] = (
    machine, packages, backends, runs_folder, mlflow_store, cluster,
)  # fmt: skip
