"""Start a small job that looks at a node: does it see the runs folder, and could a cell start?"""

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.data.prepared import data_dir
from orchestrator.errors import EnvironmentFault
from orchestrator.launch.slurm.flags import SBATCH_ONLY, as_arguments, site_flags
from orchestrator.launch.slurm.scheduler import SchedulerMessage, refusal_of
from orchestrator.records import Cell, EvaluationSpec, Site
from orchestrator.site.forecast import release_of
from orchestrator.site.node_facts import MARK
from orchestrator.spec.site_options import SlurmOptions, slurm_options

DEADLINE_SECONDS = 120.0
"""Seconds to wait for a free node."""
_LOOK_MINUTES = 15
"""Minutes that a node may take: a first import from a cluster's file system takes some."""


class NodeReport(NamedTuple):
    """The facts on a node, seen from inside. Only `fault` is set if no node answered."""

    node: str = ""
    python: str = ""
    shared: str = ""
    """The reason why the node cannot use the runs folder; empty if it can."""
    gpus: str = "0"
    findings: Sequence[Sequence[str]] = ()
    """What `preflight` reports: check, verdict, what is there, what to do."""
    fault: SchedulerMessage | None = None


def probe_node(
    site: Site,
    cells: Sequence[Cell] = (),
    evaluation: EvaluationSpec | None = None,
) -> NodeReport:
    """Check one node of the site's partition, with the GPUs of a cell. Leave nothing behind.

    Raise EnvironmentFault if the runs folder cannot be written from here.
    """
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
        raise EnvironmentFault(
            f"{folder} cannot be written to from here: {error.strerror} (site.runs_dir)"
        ) from error
    try:
        python = options.python or sys.executable
        program = [python, "-P", "-m", "orchestrator.site.node_facts", json.dumps(request)]
        argv = [*_srun(options, gpus), *program]
        return _answer(argv, options, python, DEADLINE_SECONDS, folder / f"{token}.answer")
    finally:
        for name in (token, f"{token}.answer"):
            (folder / name).unlink(missing_ok=True)
        with suppress(OSError):
            for path in missing:
                path.rmdir()


def _one_of_each(cells: Iterable[Cell]) -> Collection[Cell]:
    """Return one cell of each release, model, reference, data and loggers, with and without GPUs:
    what a node must have. Of several, the one with the most GPUs."""
    kinds = {
        (
            release_of(cell),
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
    return ["srun", *own, f"--time={_LOOK_MINUTES}", *as_arguments(flags)]


def _answer(
    argv: Sequence[str], options: SlurmOptions, python: str, deadline: float, started_file: Path
) -> NodeReport:
    """Return what the node reports.

    deadline: seconds to wait for a node. started_file: the file that the node writes when it
    starts; from then on it has _LOOK_MINUTES.
    """
    # Within an allocation srun would start a step of that job, and no job of its own.
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_JOB")}
    process = subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        env=env,
        start_new_session=True,
    )
    try:
        out, err = _output(process, deadline, started_file)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)  # srun takes its job back
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=10)
        process.kill()
        if started_file.exists():
            return NodeReport(
                fault=SchedulerMessage(
                    f"a node was looked at for {_LOOK_MINUTES} minutes and had not ended: its "
                    "imports or its file system are slow"
                )
            )
        return NodeReport(
            fault=SchedulerMessage(
                f"no node was free within {deadline:.0f} s, so none was looked at; "
                "ask again when the queue is shorter",
                passing=True,
            )
        )
    _, marked, line = out.rpartition(MARK)
    if marked:
        return NodeReport(**json.loads(line))
    return NodeReport(fault=_fault(err, options, python))


def _output(
    process: "subprocess.Popen[str]", deadline: float, started_file: Path
) -> tuple[str, str]:
    try:
        return process.communicate(timeout=deadline)
    except subprocess.TimeoutExpired:
        if not started_file.exists():
            raise
        return process.communicate(timeout=60 * _LOOK_MINUTES)


def _fault(err: str, options: SlurmOptions, python: str) -> SchedulerMessage:
    if "execve()" in err or "No such file or directory" in err:
        return SchedulerMessage(
            f"the nodes do not have {python}: put orch's environment where they see it, "
            "or say which Python has orch there",
            "site.options.python",
        )
    if "No module named" in err:
        last_line = next(line for line in err.splitlines() if "No module named" in line).strip()
        return SchedulerMessage(
            f"{python} runs on the node and cannot import orch ({last_line}): install orch "
            "where the nodes see it",
            "site.options.python",
        )
    return refusal_of(err, options.model_dump())
