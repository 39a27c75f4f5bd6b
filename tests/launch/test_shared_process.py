"""Several cells of the embedded trainer in one process: each is an attempt of its own."""

import hashlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.identity import fingerprint
from orchestrator.launch import local
from orchestrator.launch.local import launch
from orchestrator.records import Cell
from orchestrator.rundir import RunFolder
from orchestrator.runs import operations
from orchestrator.runs.collect import collect
from orchestrator.runs.experiment import open_experiment
from tests.cluster.waiting import wait_for
from tests.launch.kit import Orch

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cells() -> list[Cell]:
    """Four cells of one shape, long enough to be met on their way."""
    found = []
    for cell in open_experiment(ROOT / "experiments" / "smoke.yaml", ["site=local"]).cells:
        longer = cell.settings.model_copy(update={"num_train_steps": 40})
        found.append(cell.model_copy(update={"settings": longer, "id": fingerprint(longer)}))
    return found


@pytest.fixture(scope="module")
def undisturbed(
    cells: list[Cell], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], list[object]]:
    """(number of a cell) -> what its training gives alone in a process."""
    folder = RunFolder(tmp_path_factory.mktemp("alone"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(local, "_shape", lambda _cell: None)
        assert launch(cells, folder, workers=1).count("succeeded") == len(cells)
    assert len({process_of(folder, cell) for cell in cells}) == len(cells)
    return lambda number: numbers([cells[number]], folder)


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


def steps(folder: RunFolder, cell: Cell) -> int:
    attempts = folder.cell(cell).attempts()
    path = attempts[-1].metrics if attempts else None
    return len(path.read_text().splitlines()) if path and path.exists() else 0


def process_of(folder: RunFolder, cell: Cell, attempt: int = -1) -> int:
    pid: int = json.loads(folder.cell(cell).attempts()[attempt].job.read_text())["pid"]
    return pid


def test_a_cancelled_cell_leaves_its_process_and_the_others_go_on(
    cells: list[Cell],
    folder: RunFolder,
    orch: Orch,
    undisturbed: Callable[[int], list[object]],
) -> None:
    process = orch.start(cells, folder, workers=1, PYTHONPATH="")
    wait_for(lambda: steps(folder, cells[1]) > 6, seconds=60)
    assert len({process_of(folder, cell) for cell in cells}) == 1
    (done,) = operations.cancel([cells[1]], folder, "not needed")
    assert (done.done, done.note) == (True, "stopped")
    out, err = process.communicate(timeout=120)
    assert out, err
    states = [folder.cell(cell).state() for cell in cells]
    assert [state.state for state in states] == [
        "succeeded",
        "cancelled",
        "succeeded",
        "succeeded",
    ]
    assert states[1].exit.message == "not needed"
    assert 6 < steps(folder, cells[1]) < 40
    for number in (0, 2, 3):
        assert numbers([cells[number]], folder) == undisturbed(number)
    shares = [state.exit.cpu_seconds for state in states if state.exit]
    assert min(shares) > 0
    operations.retry([cells[1]], folder)
    assert orch.run([cells[1]], folder, PYTHONPATH="")["succeeded"] == 1
    assert numbers([cells[1]], folder) == undisturbed(1)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_cells_of_a_process_that_is_ended_go_on_from_their_states(
    how: signal.Signals,
    cells: list[Cell],
    folder: RunFolder,
    orch: Orch,
    undisturbed: Callable[[int], list[object]],
) -> None:
    process = orch.start(cells, folder, workers=1, PYTHONPATH="")
    wait_for(lambda: steps(folder, cells[3]) > 14, seconds=60)
    os.kill(process_of(folder, cells[3]), how)
    out, err = process.communicate(timeout=120)
    assert out, err
    if how == signal.SIGTERM:
        states = [folder.cell(cell).state() for cell in cells]
        assert {state.state for state in states} == {"preempted"}
        assert {state.exit.message for state in states if state.exit} == {"asked to stop"}
        assert orch.run(cells, folder, PYTHONPATH="")["succeeded"] == 4
    for number, cell in enumerate(cells):
        assert folder.cell(cell).state().state == "succeeded"
        assert len(folder.cell(cell).attempts()) == 2
        assert numbers([cell], folder) == undisturbed(number)
    if how == signal.SIGKILL:
        assert len({process_of(folder, cell) for cell in cells}) == 4, "each alone, to be safe"


def test_a_cell_that_cannot_begin_or_fails_is_told_by_itself(
    cells: list[Cell], folder: RunFolder, undisturbed: Callable[[int], list[object]]
) -> None:
    folder.open()
    broken = folder.cell(cells[2])
    broken.make(cells[2])
    broken.checkpoints.write_text("a file where a folder should be")
    launched = launch([cells[0], cells[2]], folder, workers=1)
    (_, trained), (_, failed) = launched.states
    assert trained.state == "succeeded"
    assert failed.state == "failed"
    assert "cannot be written or read" in failed.exit.message
    assert "Traceback" not in folder.cell(cells[2]).attempts()[0].stderr.read_text()
    assert numbers([cells[0]], folder) == undisturbed(0)
