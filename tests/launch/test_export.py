"""verl's shards to a Hugging Face directory: whole or not there, once, in verl's environment."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from backends.verl import BACKEND
from orchestrator.evaluate.checkpoint import stamp
from orchestrator.launch.export import ExportError, export
from orchestrator.records import Cell, Checkpoint
from orchestrator.rundir import CellDir, RunFolder
from orchestrator.spec.site_options import node_options
from tests.cluster import wait_for
from tests.cluster.daemons import is_alive
from tests.launch import exporter


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return exporter.environment(tmp_path / "env 'of' verl")


@pytest.fixture
def trained(folder: RunFolder) -> tuple[Cell, CellDir, Checkpoint]:
    cell, home = exporter.trained(folder)
    (found,) = BACKEND.find_checkpoints(home.checkpoints)
    assert found.needs_export
    return cell, home, found


def ask(trained: tuple[Cell, CellDir, Checkpoint], place: Path, how: str = "") -> Checkpoint:
    cell, home, found = trained
    return export(cell, found, home, node_options(exporter.options(place, how)))


def left(home: CellDir) -> list[str]:
    return sorted(path.name for path in home.exports.iterdir())


def test_a_checkpoint_is_converted_once_and_recorded(
    trained: tuple[Cell, CellDir, Checkpoint], place: Path
) -> None:
    made = ask(trained, place)
    assert not made.needs_export
    assert made.step == trained[2].step
    assert "model.safetensors" in stamp(made.path)
    record = json.loads((made.path.parent / "export.json").read_text())
    assert record["checkpoint"] == str(trained[2].path)
    assert record["environment"]["venv"] == str(place)
    assert (record["backend"], record["version"]) == ("verl", "0.9.1")
    assert ask(trained, place) == made
    assert exporter.calls(place) == 1
    assert left(trained[1]) == [made.path.parent.name]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("fail", "exit code 1\nRuntimeError: size mismatch for lm_head.weight"),
        ("half", "ended well and left no whole policy"),
    ],
)
def test_a_failure_is_a_sentence_and_leaves_its_log_alone(
    trained: tuple[Cell, CellDir, Checkpoint], place: Path, how: str, words: str
) -> None:
    with pytest.raises(ExportError, match=words):
        ask(trained, place, how)
    assert [name.rpartition(".")[2] for name in left(trained[1])] == ["log"]
    assert ask(trained, place).path.is_dir(), "it is tried again when asked again"
    assert not [name for name in left(trained[1]) if name.endswith(".log")]


def test_killed_in_the_middle_it_leaves_nothing_that_is_used(
    trained: tuple[Cell, CellDir, Checkpoint], place: Path, tmp_path: Path
) -> None:
    cell, home, found = trained
    script = (
        "import sys, json\nfrom pathlib import Path\n"
        "from orchestrator.launch.export import export\n"
        "from orchestrator.spec.site_options import node_options\n"
        "from orchestrator.rundir import CellDir\nfrom orchestrator.records import Cell, "
        "Checkpoint\n"
        "home = CellDir(Path(sys.argv[1]))\n"
        "export(home.read_cell(), Checkpoint(int(sys.argv[2]), Path(sys.argv[3]), True), home,"
        " node_options(json.loads(sys.argv[4])))\n"
    )
    options = json.dumps(exporter.options(place, "slow"))
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(home.path), str(found.step), str(found.path), options]
    )
    try:
        wait_for(lambda: list(home.exports.glob(".new-*/huggingface/*")), 60, "half of an export")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    merger = int((place / "calls").read_text())
    wait_for(lambda: not is_alive(merger), 20, "the merger to end with it")
    made = export(cell, found, home, node_options(exporter.options(place)))
    assert left(home) == [made.path.parent.name], "what the other left is gone"
