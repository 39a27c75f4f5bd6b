"""orch tune as a person uses it: real training on the embedded trainer, killed and resumed."""

import json
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import ROOT, orch

from tests.cluster.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.long]

SPEC = "experiments/smoke.yaml"
BLOCK = (
    "+tune={beta: [0.05, 5], maximize: eval/accuracy_in_domain, seeds: [0], trials: 2}",
    "-w",
    "kl=k1.reward,k3.loss",
)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two searches, ended by kill -9 in the middle and begun again."""
    folder = tmp_path_factory.mktemp('it\'s a "search" ü')
    shutil.copytree(ROOT / "experiments", folder / "experiments")
    argv = [sys.executable, "-m", "orchestrator", "tune", SPEC, *BLOCK]
    with (folder / "killed.log").open("w") as log:
        process = subprocess.Popen(argv, cwd=folder, stdout=log, stderr=log)
        wait_for(lambda: "complete" in (folder / "killed.log").read_text(), 120, "no trial ended")
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = orch(folder, "tune", SPEC, *BLOCK, "--json")
    assert done.returncode == 0, done.stderr
    (folder / "told.json").write_text(done.stdout)
    return folder


@pytest.fixture(scope="module")
def told(searched: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((searched / "told.json").read_text())
    return found


def test_a_kill_loses_and_doubles_nothing(searched: Path, told: list[dict[str, Any]]) -> None:
    assert [one["search"] for one in told] == ["k1.reward", "k3.loss"]
    for one in told:
        assert [trial["state"] for trial in one["trials"]] == ["COMPLETE"] * 2
    cells = {cell for one in told for trial in one["trials"] for cell in trial["cells"]}
    on_disk = searched / "runs" / "smoke.micro" / "cells"
    assert {path.name.rpartition("-")[2] for path in on_disk.iterdir()} == cells
    assert len(cells) == 4
    for path in on_disk.iterdir():
        ended = [json.loads(e.read_text())["state"] for e in path.glob("attempts/*/exit.json")]
        assert ended.count("succeeded") == 1


def test_trials_are_ordinary_cells_in_mlflow(searched: Path, told: list[dict[str, Any]]) -> None:
    with sqlite3.connect(searched / "runs" / "mlflow.db") as database:
        rows = database.execute("select run_uuid, key, value from tags").fetchall()
    tags: dict[str, dict[str, str]] = {}
    for run, key, value in rows:
        tags.setdefault(run, {})[key] = value
    of_cell = {own["orch.cell_id"]: own for own in tags.values() if "trial" in own}
    for one in told:
        for trial in one["trials"]:
            for cell in trial["cells"]:
                own = of_cell[cell]
                assert own["kl"] == own["search"] == one["search"]
                assert own["trial"] == str(trial["number"])


def test_again_does_nothing_and_prune_spares_trials(searched: Path) -> None:
    cells = sorted((searched / "runs" / "smoke.micro" / "cells").iterdir())
    done = orch(searched, "tune", SPEC, *BLOCK)
    assert done.returncode == 0, done.stderr
    assert "asked" not in done.stderr
    assert "k3.loss" in done.stdout
    pruned = orch(searched, "prune", SPEC, "--yes")
    assert pruned.returncode == 0, pruned.stderr
    assert sorted((searched / "runs" / "smoke.micro" / "cells").iterdir()) == cells
