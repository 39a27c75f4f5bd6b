"""Prime-RL keeps the contract of a backend."""

import json
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from backends.prime_rl import BACKEND, config
from backends.prime_rl.manifest import MANIFEST
from backends.prime_rl.translate import sent
from orchestrator.records import Cell, LaunchPlan
from orchestrator.testing.backend_contract import BackendContract
from tests import golden
from tests.backends.prime_rl.test_disk import TRAINER


class TestPrimeRl(BackendContract):
    backend = BACKEND

    def cells(self) -> tuple[Cell, ...]:
        return golden.cells("prime_rl")

    def release_keys(self, version: str) -> Collection[str]:
        table = MANIFEST.tables[version]
        return {*table.keys, *(f"{prefix}*" for prefix in table.added)}

    def emitted(self, plan: LaunchPlan) -> Mapping[str, Sequence[str]]:
        """With the server's file as the table [inference], which it is on one node."""
        server = sent({"rl.toml": tomllib.loads(plan.files.get("inference.toml", ""))})
        keys = {f"inference.{key}": value for key, value in server.items()}
        files = {**plan.files, "server.toml": config.dumps(keys)}
        return super().emitted(plan.model_copy(update={"files": files}))

    def write_log(self, attempt_dir: Path) -> Path:
        log = attempt_dir / "logs" / "trainer.stdout"
        log.parent.mkdir(parents=True)
        (attempt_dir / "job.json").write_text(json.dumps({"started": 1000.0}))
        lines = (TRAINER.format(clock=f"10:00:0{n}", step=n, norm="0.5") for n in range(3))
        log.write_text("".join(lines))
        return log

    def write_unknown_log(self, attempt_dir: Path) -> None:
        log = self.write_log(attempt_dir)
        text = log.read_text()
        for name in ("Time", "Loss", "Entropy", "Mismatch KL", "Grad. Norm", "LR", "Throughput"):
            text = text.replace(f"{name}:", "Something:")
        log.write_text(text)

    def write_checkpoint(self, checkpoints_dir: Path, step: int) -> None:
        weights = checkpoints_dir / "weights" / f"step_{step}"
        for home in (weights, checkpoints_dir / "checkpoints" / f"step_{step}" / "trainer"):
            home.mkdir(parents=True)
        for name in ("config.json", "tokenizer_config.json"):
            (weights / name).write_text("{}")
        (weights / "model.safetensors").write_bytes(b"weights")
        (weights / "STABLE").touch()
        (checkpoints_dir / "checkpoints" / f"step_{step}" / "STABLE").touch()
