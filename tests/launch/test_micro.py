"""The embedded trainer under the launcher: a kill in the middle changes no number."""

import hashlib
import os
from pathlib import Path

import pytest

from orchestrator.launch.local import launch
from orchestrator.records import Cell
from orchestrator.rundir import RunFolder
from orchestrator.runs.collect import collect
from orchestrator.runs.experiment import open_experiment
from orchestrator.settings import Cadence
from tests.launch.kit import Orch
from tests.launch.test_local import wait_for

ROOT = Path(__file__).parents[2]


@pytest.fixture
def smoke() -> list[Cell]:
    spec = ROOT / "experiments" / "smoke.yaml"
    often = {"cadence": Cadence(checkpoint_every_steps=4)}
    cells = open_experiment(spec, ["site=local"]).cells
    return [cell.model_copy(update=often) for cell in cells]


def numbers(cells: list[Cell], folder: RunFolder) -> list[object]:
    """All that training gives, but for the time it took."""
    found: list[object] = []
    for record in collect(cells, folder):
        assert record.faults == ()
        weights = record.checkpoints[-1].path / "model.safetensors"
        found.append(hashlib.sha256(weights.read_bytes()).hexdigest())
        found.append(
            [
                (p.step, {k: v for k, v in p.values.items() if not k.startswith("time/")})
                for p in record.metrics
            ]
        )
    return found


@pytest.mark.slow
def test_a_kill_in_the_middle_changes_no_number(
    smoke: list[Cell], folder: RunFolder, orch: Orch, tmp_path: Path
) -> None:
    undisturbed = RunFolder(tmp_path / "undisturbed")
    assert orch.run(smoke, undisturbed, PYTHONPATH="")["succeeded"] == len(smoke)

    def half_way() -> bool:
        files = folder.path.glob("cells/*/attempts/*/metrics.jsonl")
        return any(len(path.read_text().splitlines()) > 6 for path in files)

    process = orch.start(smoke, folder, PYTHONPATH="")
    wait_for(half_way, seconds=60)
    process.kill()
    process.communicate()
    assert launch(smoke, folder).count("succeeded") == len(smoke)
    attempts = [len(folder.cell(cell).attempts()) for cell in smoke]
    assert max(attempts) == 2, "somebody was interrupted"
    assert numbers(smoke, folder) == numbers(smoke, undisturbed)


@pytest.mark.slow
def test_a_result_does_not_depend_on_how_many_run_beside_it(
    smoke: list[Cell], folder: RunFolder, orch: Orch, tmp_path: Path
) -> None:
    alone = RunFolder(tmp_path / "alone")
    orch.run(smoke[:2], alone, 1, PYTHONPATH="")
    orch.run(smoke, folder, max(3, os.cpu_count() or 1), PYTHONPATH="")
    assert numbers(smoke[:2], folder) == numbers(smoke[:2], alone)
