"""verl keeps the contract of a backend."""

import json
from collections.abc import Collection
from pathlib import Path

from backends.verl import BACKEND
from backends.verl.manifest import TABLES
from orchestrator.records import Cell
from orchestrator.testing.backend_contract import BackendContract
from tests import golden
from tests.backends.verl.test_checkpoints import save
from tests.backends.verl.test_metrics import STEP


class TestVerl(BackendContract):
    backend = BACKEND

    def cells(self) -> tuple[Cell, ...]:
        return golden.cells("verl")

    def release_keys(self, version: str) -> Collection[str]:
        return {*TABLES[version].keys, *(f"{prefix}*" for prefix in TABLES[version].added)}

    def write_log(self, attempt_dir: Path) -> Path:
        return _lines(attempt_dir, {**STEP})

    def write_unknown_log(self, attempt_dir: Path) -> None:
        _lines(attempt_dir, {"trainer/loss": 0.1, "rl/return": 2.0})

    def write_checkpoint(self, checkpoints_dir: Path, step: int) -> None:
        save(checkpoints_dir / "x1", step)
        tracker = checkpoints_dir / "x1" / "latest_checkpointed_iteration.txt"
        tracker.write_text("100")


def _lines(attempt_dir: Path, values: dict[str, float]) -> Path:
    attempt_dir.mkdir(parents=True, exist_ok=True)
    log = attempt_dir / "verl.x1.k1.jsonl"
    lines = (json.dumps({"step": step, "data": values}) + "\n" for step in (1, 2, 3))
    log.write_text("".join(lines))
    return log
