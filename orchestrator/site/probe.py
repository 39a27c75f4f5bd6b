"""Start a small job that looks at a node: does it see the runs folder, and could a cell start?"""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.data.prepared import data_dir
from orchestrator.launch import processes
from orchestrator.launch.hub_data import SiteFinding
from orchestrator.launch.slurm.flags import SBATCH_ONLY, as_arguments, site_flags
from orchestrator.launch.slurm.scheduler import refusal_of
from orchestrator.records import Cell, EvaluationSpec, Site
from orchestrator.site.node_facts import MARK
from orchestrator.spec.site_options import SlurmOptions, slurm_options

WAIT_SECONDS = 120
"""Seconds to wait for a free node."""
_LOOK_MINUTES = 15
"""Minutes that a node may take: a first import from a cluster's file system takes some."""


def probe_node(
    site: Site,
    cells: Sequence[Cell] = (),
    evaluation: EvaluationSpec | None = None,
) -> list[SiteFinding]:
    """Check one node of the site's partition, with the GPUs of a cell. Leave nothing behind."""
    options, folder = slurm_options(site.options), Path(site.runs_dir)
    gpus = max((cell.resources.gpus_per_node for cell in cells), default=0)
    token = f".orch-probe-{secrets.token_hex(8)}"
    request: dict[str, Any] = {
        "folder": str(folder.absolute()),
        "token": token,
        "site": site.model_dump(mode="json", exclude_defaults=True),
        "cells": [cell.model_dump(mode="json") for cell in _one_of_each(cells)],
        "evaluation": evaluation.model_dump(mode="json") if evaluation else None,
        "data_dir": str(data_dir()),
    }
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / token).write_text(token, encoding="utf-8")
    except OSError as error:
        why = f"cannot be written to from here: {error.strerror}"
        return [SiteFinding("runs folder", "broken", str(folder), f"{why} (site.runs_dir)")]
    try:
        python = options.python or sys.executable
        program = [python, "-P", "-m", "orchestrator.site.node_facts", json.dumps(request)]
        # Within an allocation srun would start a step of that job, and no job of its own.
        env = {name: each for name, each in os.environ.items() if not name.startswith("SLURM_JOB")}
        seconds = 2 * WAIT_SECONDS + 60 * _LOOK_MINUTES
        done = processes.finished([*_srun(options, gpus), *program], seconds, env=env)
    except subprocess.TimeoutExpired:
        return [SiteFinding("a node", "broken", "not looked at", f"srun ran {seconds} s")]
    finally:
        for name in (token, f"{token}.answer"):
            (folder / name).unlink(missing_ok=True)
        with suppress(OSError):
            for path in missing:
                path.rmdir()
    _, marked, line = done.stdout.rpartition(MARK)
    if marked:
        return [SiteFinding(*each) for each in json.loads(line)]
    fault = refusal_of(done.stderr, {**options.model_dump(), "python": python})
    verdict = "missing" if fault.passing else "broken"
    return [SiteFinding("a node", verdict, "not looked at", fault.sentence)]


def _one_of_each(cells: Iterable[Cell]) -> Collection[Cell]:
    """Return one cell of each release, model, reference, data and loggers, with and without GPUs:
    what a node must have. Of several, the one with the most GPUs."""
    kinds = {
        (
            cell.settings.backend,
            cell.settings.model.path,
            cell.settings.kl.reference,
            cell.settings.data,
            cell.loggers,
            bool(cell.resources.gpus_per_node),
        ): cell
        for cell in sorted(cells, key=lambda cell: cell.resources.gpus_per_node)
    }
    return kinds.values()


def _srun(options: SlurmOptions, gpus: int) -> list[str]:
    site = site_flags(options, gpus)
    flags = {name: value for name, value in site.items() if name not in SBATCH_ONLY}
    own = ["--job-name=orch-doctor", "--nodes=1", "--ntasks=1", "--chdir=/", "--input=none"]
    limits = [f"--immediate={WAIT_SECONDS}", f"--time={_LOOK_MINUTES}"]
    return ["srun", *own, *limits, *as_arguments(flags)]
