"""TRL keeps the contract of a backend."""

import json
import zipfile
from collections.abc import Collection
from pathlib import Path

from backends import trl
from backends.trl.options import SCRIPTS, options
from orchestrator.library.launches import Launch
from orchestrator.records import Cell, LaunchPlan
from orchestrator.settings import Kl
from orchestrator.testing.backend_contract import BackendContract
from tests import golden
from tests.backends.trl.cells import BY_SEQUENCES, cell

VALUES = {
    "loss": 0.0187,
    "grad_norm": 2.5,
    "learning_rate": 0.001,
    "num_tokens": 3581.0,
    "completions/mean_length": 5.9765625,
    "rewards/task_reward/mean": 0.40625,
    "reward": 0.4642857313156128,
    "kl": 0.0235,
    "entropy": 0.43896,
    "clip_ratio/region_mean": 0.0,
    "step_time": 0.1591,
}
"""Of a real train step."""


class TestTRL(BackendContract):
    backend = trl.BACKEND

    def cells(self) -> tuple[Cell, ...]:
        """With the ratio of the response in RLOOTrainer, without a GPU."""
        k1 = Kl(estimator="k1", placement="reward", beta=0.1)
        loss = BY_SEQUENCES.but(ratio_level="sequence")
        own = (cell(k1, version=v, loss=loss, minibatches=2) for v in trl.BACKEND.versions)
        return (*own, *golden.cells("trl"))

    def release_keys(self, version: str) -> Collection[str]:
        return {name for script in SCRIPTS for name in options(script, version)}

    def write_log(self, attempt_dir: Path) -> Path:
        return _log(attempt_dir, VALUES)

    def write_unknown_log(self, attempt_dir: Path) -> None:
        _log(attempt_dir, {f"new/{name}": value for name, value in VALUES.items()})

    def write_checkpoint(self, checkpoints_dir: Path, step: int) -> None:
        folder = checkpoints_dir / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        for name in ("config.json", "tokenizer_config.json", "trainer_state.json"):
            (folder / name).write_text('{"a": 1}')
        header = json.dumps({"w": {"data_offsets": [0, 16]}}).encode()
        weights = len(header).to_bytes(8, "little") + header + bytes(16)
        (folder / "model.safetensors").write_bytes(weights)
        for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
            with zipfile.ZipFile(folder / name, "w") as archive:  # as torch.save writes them
                archive.writestr("data", b"0" * 64)

    def own_launch(self, plan: LaunchPlan) -> Launch:
        launch = super().own_launch(plan)
        (config,) = (each for each in launch.documents if each.name.endswith(".yaml"))
        return Launch(launch.words, (config,), versions=launch.versions)


def _log(attempt_dir: Path, values: dict[str, float]) -> Path:
    path = attempt_dir / "trl.jsonl"
    lines = [
        json.dumps({"step": step, "time": 1e9 + step, "script": "grpo", "values": values})
        for step in (1, 2, 3)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_rlootrainers_kl_is_of_responses_and_grpos_of_tokens(tmp_path: Path) -> None:
    """RLOO logs k1 of tokens; the term is their sum over a response."""
    path = _log(tmp_path, VALUES)
    (first, *_) = trl.BACKEND.read_metrics(tmp_path)
    assert first.values["train/kl_term"] == 0.0235
    assert first.values["train/reward_mean"] == 0.40625, "without its weight"
    path.write_text(path.read_text().replace('"grpo"', '"rloo"'))
    (first, *_) = trl.BACKEND.read_metrics(tmp_path)
    assert first.values["train/kl_reference_per_token"] == 0.0235
    assert first.values["train/kl_term"] == 0.0235 * 5.9765625


def test_a_policy_newer_than_the_last_state_is_no_checkpoint(tmp_path: Path) -> None:
    """A resumed run writes it again."""
    for step in (5, 10):
        TestTRL().write_checkpoint(tmp_path, step)
    (tmp_path / "checkpoint-10" / "optimizer.pt").unlink()
    assert [each.step for each in trl.BACKEND.find_checkpoints(tmp_path)] == [5]
