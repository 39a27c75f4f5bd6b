"""SkyRL keeps the contract of a backend."""

from collections.abc import Collection
from pathlib import Path

from backends import skyrl
from backends.skyrl.launch.orch_skyrl import OPTIONS
from backends.skyrl.manifest import NEEDS
from orchestrator.library.key_tables import load_options
from orchestrator.records import Cell
from orchestrator.testing.backend_contract import BackendContract
from tests import golden
from tests.backends.events import write_events
from tests.backends.skyrl.test_checkpoints import export
from tests.backends.skyrl.test_metrics import STEP

FOLDER = Path(skyrl.__file__).parent


class TestSkyRL(BackendContract):
    backend = skyrl.BACKEND

    def cells(self) -> tuple[Cell, ...]:
        return golden.cells("skyrl")

    def release_keys(self, version: str) -> Collection[str]:
        keys = load_options(FOLDER / "options.json")[version].keys()
        return {*keys, NEEDS, *(f"orch.{option}" for option in OPTIONS)}

    def write_log(self, attempt_dir: Path) -> Path:
        return _events(attempt_dir, STEP)

    def write_unknown_log(self, attempt_dir: Path) -> None:
        _events(attempt_dir, {f"new/{i}": 1.0 for i in range(5)})

    def write_checkpoint(self, checkpoints_dir: Path, step: int) -> None:
        export(checkpoints_dir / "exports-x1" / f"global_step_{step}" / "policy")


def _events(attempt_dir: Path, values: dict[str, float]) -> Path:
    path = attempt_dir / "tensorboard-x1" / "events.out.tfevents.1"
    return write_events(path, [(step, values) for step in (1, 2, 3)])
