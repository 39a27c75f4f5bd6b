"""The line works where the storeys above it are not: their folders are removed from a copy."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHIPPED = ("orch", "orchestrator", "backends", "dashboards", "experiments")
ABOVE = ("orchestrator/audit", "orchestrator/lab", "backends/*/audit", "backends/*/lab")


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the tree without the folders of audit and lab."""
    place = tmp_path_factory.mktemp("house")
    for name in SHIPPED:
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    folders = [folder for pattern in ABOVE for folder in place.glob(pattern)]
    assert len(folders) > 10
    for folder in folders:
        shutil.rmtree(folder)
    return place


def orch(house: Path, *argv: str) -> str:
    """Run the copy's orch, which comes before the installed one, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", *argv],
        cwd=house,
        env={**os.environ, "PYTHONPATH": str(house)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 3), f"{argv}: {done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_copy_has_neither(house: Path) -> None:
    code = (
        "import importlib.util as u, orchestrator, sys;"
        "print(orchestrator.__file__, u.find_spec('orchestrator.audit'), "
        "u.find_spec('orchestrator.lab'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=house,
        env={**os.environ, "PYTHONPATH": str(house)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(house / "orchestrator" / "__init__.py"), "None", "None"]


@pytest.mark.parametrize("argv", [("audit", "x.sh"), ("prove",)])
def test_a_command_of_a_storey_that_is_gone_is_a_sentence(
    house: Path, argv: tuple[str, ...]
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", *argv],
        cwd=house,
        env={**os.environ, "PYTHONPATH": str(house)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "which this installation of orch leaves out" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow  # trains
def test_plan_run_and_report_work_without_audit_and_lab(house: Path) -> None:
    assert "cells" in orch(house, "plan", "experiments/smoke.yaml")
    orch(house, "run", "experiments/smoke.yaml")
    orch(house, "report", "experiments/smoke.yaml")
    orch(house, "compare", "experiments/smoke.yaml")
    page = house / "runs" / "smoke.micro" / "report" / "index.html"
    assert "k3" in page.read_text(encoding="utf-8")
    orch(house, "explain", "k3", "loss")


@pytest.mark.slow  # plans every cell of a large spec in a new process
def test_a_cluster_spec_is_planned_without_the_embedded_trainer(house: Path) -> None:
    trainer = house / "backends" / "micro"
    away = trainer.rename(house / "micro")
    try:
        plan = json.loads(
            orch(house, "plan", "experiments/comedy_full.yaml", "site=slurm_a100", "--json")
        )
    finally:
        away.rename(trainer)
    assert len(plan["cells"]) > 100
