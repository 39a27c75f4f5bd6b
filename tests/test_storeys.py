"""Without `lab/` and `orchestrator/audit`, all but two commands work.

The wheel of tests/test_wheel.py has no `lab/` either.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHIPPED = ("orch", "orchestrator", "backends", "dashboards", "experiments")
AUDIT = ("orchestrator/audit", "backends/*/audit")


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the product without the folders of the audit, and without `lab/`."""
    place = tmp_path_factory.mktemp("house")
    for name in SHIPPED:
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    folders = [folder for pattern in AUDIT for folder in place.glob(pattern)]
    assert len(folders) > 5
    for folder in folders:
        shutil.rmtree(folder)
    return place


def run(house: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run the copy's orch, which comes before the installed one. No path leads to this tree."""
    return subprocess.run(
        [sys.executable, "-P", "-c", _ALONE, str(ROOT), *argv],
        cwd=house,
        env={**os.environ, "PYTHONPATH": str(house)},
        capture_output=True,
        text=True,
        check=False,
    )


_ALONE = """
import sys
root = sys.argv.pop(1)
sys.path[:] = [each for each in sys.path if each != root]
sys.argv[0] = "orch"
import importlib.util as u
assert u.find_spec("lab") is None and not u.find_spec("orchestrator").origin.startswith(root)
from orchestrator.cli import main
main()
"""


def orch(house: Path, *argv: str) -> str:
    """Return what a command printed that ends well."""
    done = run(house, *argv)
    assert done.returncode in (0, 3), f"{argv}: {done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("argv", [("audit", "x.sh"), ("diagnose", "x.log")])
def test_a_command_of_the_audit_that_is_gone_is_a_sentence(
    house: Path, argv: tuple[str, ...]
) -> None:
    done = run(house, *argv)
    assert done.returncode == 1
    assert "which this installation of orch leaves out" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow  # trains
def test_run_compare_and_explain_work_without_audit_and_lab(house: Path) -> None:
    orch(house, "run", "experiments/smoke.yaml")
    orch(house, "compare", "experiments/smoke.yaml")
    page = house / "runs" / "smoke.micro" / "report" / "index.html"
    assert "k3" in page.read_text(encoding="utf-8")
    orch(house, "explain", "k3", "loss")
    orch(house, "explain", "--libraries", "--library", "trl@1.16.0")


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
