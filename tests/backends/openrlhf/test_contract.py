"""OpenRLHF keeps the contract of a backend."""

from collections.abc import Collection
from pathlib import Path

from backends import openrlhf
from orchestrator.library.key_tables import load_options
from orchestrator.records import Cell
from orchestrator.testing.backend_contract import BackendContract
from tests import golden
from tests.backends.events import write_events
from tests.backends.openrlhf.test_checkpoints import save
from tests.backends.openrlhf.test_metrics import STATUS

FOLDER = Path(openrlhf.__file__).parent


class TestOpenRLHF(BackendContract):
    backend = openrlhf.BACKEND

    def cells(self) -> tuple[Cell, ...]:
        return golden.cells("openrlhf")

    def release_keys(self, version: str) -> Collection[str]:
        keys = load_options(FOLDER / "options.json")[version]
        return {*keys, *(f"--{key}" for key in keys)}

    def write_log(self, attempt_dir: Path) -> Path:
        return _events(attempt_dir, STATUS)

    def write_unknown_log(self, attempt_dir: Path) -> None:
        names = dict.fromkeys(("timing/step_total",), "timing/step_total")
        _events(attempt_dir, {names.get(name, f"new_{i}"): 1.0 for i, name in enumerate(STATUS)})

    def write_checkpoint(self, checkpoints_dir: Path, step: int) -> None:
        save(checkpoints_dir / "global_step-x1" / f"global_step{step}_hf")


def _events(attempt_dir: Path, values: dict[str, float]) -> Path:
    tagged = {f"train/{name}": value for name, value in values.items()}
    path = attempt_dir / "tensorboard" / "global_step-x1" / "events.out.tfevents.1"
    return write_events(path, [(step, tagged) for step in (1, 2, 3)])
