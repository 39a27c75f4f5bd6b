"""A package of somebody else's: a backend, an estimator and a task, found by its entry points."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

HERE = Path(__file__).parent
SPEC = """
name: toy
seeds: [0]
model: {name: m, path: org/m}
data: {name: d, path: org/d, reward: exact}
base:
  advantage: {estimator: rloo}
  loss: {clip: null}
  rollout: {group_size: 4, max_response_tokens: 8}
  batch: {num_prompts: 8}
  optimizer: {learning_rate: 1.0e-6}
  num_train_steps: 4
  resources: {num_nodes: 1, gpus_per_node: 8}
backend: {name: toytrl}
site: {kind: slurm}
studies:
  first:
    axes: {kl: [{estimator: k1, placement: loss, beta: 0.1}]}
"""
SUITE = """
import json
from pathlib import Path
from xml.etree import ElementTree as ET

from orchestrator.identity import fingerprint
from orchestrator.records import Cell
from orchestrator.settings import Settings
from orchestrator.testing.backend_contract import BackendContract
from toytrl import BACKEND, KEYS

BASE = {
    "model": {"name": "m", "path": "org/m"}, "data": {"name": "d", "path": "org/d"},
    "advantage": {"estimator": "rloo"}, "loss": {"clip": None},
    "rollout": {"group_size": 4, "max_response_tokens": 8}, "batch": {"num_prompts": 8},
    "optimizer": {"learning_rate": 1e-6}, "num_train_steps": 4,
    "backend": {"name": "toytrl", "version": "1.0"},
}
KLS = ({"estimator": "none"}, {"estimator": "k1", "placement": "reward", "beta": 0.1},
       {"estimator": "k3", "placement": "loss", "beta": 0.1})


class TestToy(BackendContract):
    backend = BACKEND

    def cells(self):
        each = [Settings.model_validate({**BASE, "kl": kl}) for kl in KLS]
        names = {"slug": "c", "studies": ("a",), "axes": {}}
        return [Cell(id=fingerprint(s), settings=s, **names) for s in each]

    def release_keys(self, version):
        return KEYS.values()

    def write_log(self, attempt_dir, name="reward"):
        rows = ({"step": n, "time": float(n), name: 0.5} for n in (1, 2, 3))
        (attempt_dir / "log.jsonl").write_text("".join(json.dumps(r) + "\\n" for r in rows))
        return attempt_dir / "log.jsonl"

    def write_unknown_log(self, attempt_dir):
        self.write_log(attempt_dir, "score")

    def write_checkpoint(self, checkpoints_dir, step):
        folder = checkpoints_dir / f"step-{step}"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        (folder / "DONE").touch()
"""
DUMP = """
from orchestrator.identity import flatten
from orchestrator.records import LaunchPlan, LedgerEntry
from orchestrator.settings import Settings
from toytrl import ToyTrl


class Dump(ToyTrl):
    def translate(self, cell, place):
        leaves = flatten(cell.settings.model_dump())
        return LaunchPlan(
            cell_id=cell.id, backend="toytrl", version="1.0",
            argv=("python", "-m", "toytrl.train", "cell.json"),
            files={"cell.json": cell.settings.model_dump_json()},
            ledger=[LedgerEntry(field=f, status="exact", key=f, value=str(v)) for f, v in leaves],
        )

    def parse(self, argv, files):
        return Settings.model_validate_json(files["cell.json"])


BACKEND = Dump()
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the package as CONTRIBUTING says, into a folder of its own."""
    folder = tmp_path_factory.mktemp("site")
    source = tmp_path_factory.mktemp("source") / "toytrl"
    shutil.copytree(HERE / "toytrl_distribution", source)
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder, source],
        check=True,
    )
    (folder / "test_toy.py").write_text(SUITE)
    (folder / "dump.py").write_text(DUMP)
    dumped = SUITE.replace(
        "from toytrl import BACKEND, KEYS", "from dump import BACKEND\nfrom toytrl import KEYS"
    )
    (folder / "test_dump.py").write_text(dumped)
    (folder / "toytrl.yaml").write_text(SPEC)
    return folder


def python(home: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *argv],
        cwd=home,
        env={**os.environ, "PYTHONPATH": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )


def orch(home: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    return python(home, "-m", "orchestrator", *argv)


def test_its_cells_are_planned_and_explained(home: Path) -> None:
    done = orch(home, "plan", "toytrl.yaml", "--json")
    planned = json.loads(done.stdout)
    assert planned["counts"] == {"new": 1}
    (cell,) = planned["cells"]
    assert cell["axes"]["backend"] == "toytrl"
    ledger = orch(home, "show", "toytrl.yaml", cell["id"], "--ledger")
    assert ledger.returncode == 0, ledger.stderr
    assert "args.kl_estimator" in ledger.stdout
    shown = orch(home, "explain", "k4", "loss")
    assert shown.returncode == 0, shown.stderr
    assert "k4" in shown.stdout


def test_its_task_is_found(home: Path) -> None:
    done = python(home, "-c", "from orchestrator import plugins; print(plugins.task_folders())")
    assert str(home / "toytrl" / "tasks") in done.stdout, done.stderr


def outcomes(home: Path, name: str) -> dict[str, bool]:
    """Return whether each test of a file passed, or was skipped."""
    argv = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null"]
    done = python(home, *argv, f"--junitxml={name}.xml", f"{name}.py")
    report = home / f"{name}.xml"
    assert report.exists(), done.stdout[-2000:] + done.stderr[-2000:]
    cases = ET.parse(report).iter("testcase")  # noqa: S314  (pytest's own)
    return {
        each.attrib["name"]: each.find("failure") is None and each.find("error") is None
        for each in cases
    }


@pytest.mark.slow
def test_the_toy_keeps_the_contract(home: Path) -> None:
    by_test = outcomes(home, "test_toy")
    assert len(by_test) > 25
    assert all(by_test.values()), by_test


@pytest.mark.slow
def test_a_dump_that_calls_everything_exact_does_not(home: Path) -> None:
    failed = {name for name, passed in outcomes(home, "test_dump").items() if not passed}
    assert failed >= {
        "test_every_key_of_the_ledger_is_one_of_the_release",
        "test_an_unknown_estimator_is_refused",
        "test_an_unknown_release_is_refused",
        "test_an_unknown_word_is_refused[advantage.estimator]",
        "test_a_killed_attempt_goes_on_from_its_last_whole_checkpoint",
    }
