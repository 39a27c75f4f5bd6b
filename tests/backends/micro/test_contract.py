"""The embedded trainer keeps the contract of a backend."""

import json
from collections.abc import Collection
from pathlib import Path

from backends.micro import BACKEND, disk
from backends.micro.shipped import POLICIES
from orchestrator.identity import flatten
from orchestrator.library.protocol import EmbeddedTrainer
from orchestrator.records import Cell
from orchestrator.testing.backend_contract import UNKNOWN_ESTIMATOR, BackendContract
from tests.backends.specs import translated


class TestMicro(BackendContract):
    backend = BACKEND

    def cells(self) -> list[Cell]:
        return list(translated("micro"))

    def release_keys(self, version: str) -> Collection[str]:
        """The fields of cell.json, which the trainer reads with all others forbidden."""
        settings = [cell.settings.model_dump() for cell in translated("micro")[:50]]
        return {f"settings.{name}" for each in settings for name, _ in flatten(each)}

    def test_an_unknown_estimator_is_refused(self) -> None:
        """Check a name in no table. The trainer has every entry of the table: test_train.py."""
        for cell in self._one_of_each("kl.placement"):
            kl = cell.settings.kl.model_copy(
                update={"placement": cell.settings.kl.placement or "loss"}
            )
            settings = cell.settings.model_copy(update={"kl": kl})
            placed = cell.model_copy(update={"settings": settings})
            self._is_refused("kl.estimator", UNKNOWN_ESTIMATOR, placed)

    def test_its_tasks_and_policies_are_folders(self) -> None:
        assert isinstance(self.backend, EmbeddedTrainer)
        for folder in (self.backend.tasks_dir, self.backend.policies_dir):
            assert folder is None or folder.is_dir(), folder

    def write_log(self, attempt_dir: Path) -> Path:
        with disk.Journal(attempt_dir) as journal:
            for step in (1, 2, 3):
                journal.write(step, {"train/reward_mean": 0.1 * step, "train/entropy": 1.0 / step})
        return attempt_dir / disk.METRICS

    def write_unknown_log(self, attempt_dir: Path) -> None:
        row = {"step": 1, "time": 1.0, "values": {"critic/score/mean": 0.5}}
        (attempt_dir / disk.METRICS).write_text(json.dumps(row) + "\n")

    def write_checkpoint(self, checkpoints_dir: Path, step: int) -> None:
        (policy,) = [path for path in POLICIES.iterdir() if path.name == "elder"]
        folder = disk.step_dir(checkpoints_dir, step)
        folder.mkdir(parents=True)
        for path in policy.iterdir():
            if path.name != "manifest.json":
                (folder / path.name).write_bytes(path.read_bytes())
