"""A run on the nodes of a job, and what is left of it: processes that carry its token."""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import EnvironmentFault
from orchestrator.launch.node.process_group import own_address
from orchestrator.records import Cell
from orchestrator.rundir import AttemptDir, RunFolder
from tests.cluster import Cluster, wait_for
from tests.launch.kit import processes

HERE = Path(__file__).parent
GONE_SECONDS = 120.0
"""A run's end takes seconds; on a machine that does much else at the same time it takes longer."""


def submit(
    cluster: Cluster,
    folder: RunFolder,
    cell: Cell,
    options: Mapping[str, object],
    **variables: str,
) -> AttemptDir:
    """Submits a job of two nodes whose batch script is the worker (drive.py); its attempt."""
    folder.path.parent.mkdir(parents=True, exist_ok=True)
    order = folder.path.with_name(f"{folder.path.name}.json")
    told = {"folder": str(folder.path), "cell": cell.model_dump(mode="json"), "options": options}
    order.write_text(json.dumps(told))
    script = order.with_suffix(".sh")
    script.write_text(f'#!/bin/bash\nexec {sys.executable} {HERE / "drive.py"} "$1"\n')
    known = {"PYTHONPATH": str(HERE.parents[2]), "ORCH_TEST": str(folder.path), **variables}
    cluster.run(
        *("env", *(f"{name}={value}" for name, value in known.items())),
        *("sbatch", "--parsable", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1"),
        *("--gres=gpu:a100:4", "--cpus-per-task=8", "--output=/dev/null", f"--error={order}.log"),
        *(str(script), str(order)),
    )
    return AttemptDir(folder.cell(cell).path / "attempts" / "1", 1)


def ending(folder: RunFolder, attempt: AttemptDir, seconds: float) -> dict[str, Any]:
    """How the attempt ended; a failure with what was said, if it did not."""
    path, log = attempt.path / "ending.json", folder.path.with_name(f"{folder.path.name}.json.log")
    try:
        name = attempt.path.parents[1].name
        wait_for(lambda: path.exists() and path.stat().st_size > 0, seconds, f"the end of {name}")
    except TimeoutError:
        said = [p.read_text(errors="replace")[-2000:] for p in (log, attempt.stderr) if p.exists()]
        pytest.fail("\n".join(said))
    told: dict[str, Any] = json.loads(path.read_text())
    return told


def carriers(**wanted: str) -> Iterator[tuple[int, list[str], Mapping[str, str]]]:
    """Processes of a run, with their words and variables; those whose variables are as wanted."""
    for pid, words, variables in processes():
        if "ORCH_RANK_TOKEN" in variables and wanted.items() <= variables.items():
            yield pid, words, variables


def wait_until_gone(**wanted: str) -> None:
    """Returns when no process of such a run is left; else tells which are."""
    left: list[str] = []

    def none() -> bool:
        left[:] = [f"{pid} {' '.join(words)[:80]}" for pid, words, _ in carriers(**wanted)]
        return not left

    try:
        wait_for(none, GONE_SECONDS, "nothing to be left of the run")
    except TimeoutError:
        raise AssertionError(f"left of {wanted}: {left}") from None


def has_address(interface: str) -> bool:
    """Whether an interface has an address that other machines may reach."""
    try:
        return not own_address(interface, None).startswith("127.")
    except EnvironmentFault:
        return False
