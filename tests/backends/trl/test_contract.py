"""TRL keeps the contract of a backend."""

import json
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from backends import trl
from backends.trl.options import SCRIPTS, options
from orchestrator.errors import UnsupportedSetting
from orchestrator.library.launches import Launch
from orchestrator.records import AttemptPaths, Cell, LaunchPlan, Resources
from orchestrator.settings import EngineCorrection, Kl, Loss
from orchestrator.testing.backend_contract import BackendContract
from tests.backends.specs import of_releases
from tests.backends.trl.cells import cell, every_kind

PLACE = AttemptPaths(Path("/runs/plan"), Path("/runs/attempts/1"), Path("/runs/checkpoints"))
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

    def cells(self) -> list[Cell]:
        return [*of_releases("trl"), *every_kind()]

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


def test_a_launch_with_vllms_weight_is_read_with_it() -> None:
    """It was read as one without: TRL weighs by the ratio to vLLM unless told not to."""
    plan = trl.BACKEND.translate(cell(Kl(estimator="k3", placement="loss", beta=0.1)), PLACE)
    own = plan.files["grpo.yaml"]
    assert "use_vllm: false" in own
    with_vllm = own.replace("use_vllm: false", "use_vllm: true")
    read = trl.BACKEND.parse(plan.argv, {**plan.files, "grpo.yaml": with_vllm})
    assert read.loss.correction == EngineCorrection(kind="mis_sequence", most=3.0)
    plain = f"{with_vllm}\nvllm_importance_sampling_correction: false\n"
    read = trl.BACKEND.parse(plan.argv, {**plan.files, "grpo.yaml": plain})
    assert read.loss.correction is None


def corrected(loss: Mapping[str, Any], gpus: int = 1) -> Cell:
    asked = cell(Kl(estimator="k3", placement="loss", beta=0.1))
    settings = asked.settings.but(loss=Loss.model_validate(loss))
    resources = Resources(num_nodes=1, gpus_per_node=gpus)
    return asked.but(settings=settings, resources=resources)


@pytest.mark.parametrize("kind", ["tis_token", "tis_sequence", "mis_token", "mis_sequence"])
@pytest.mark.parametrize("bounds", [(0.0, 2.0), (0.5, 2.0), (0.5, None)])
def test_a_weight_is_sent_and_read_back(kind: str, bounds: tuple[float, float | None]) -> None:
    least, most = bounds
    asked = corrected({"correction": {"kind": kind, "least": least, "most": most}})
    plan = trl.BACKEND.translate(asked, PLACE)
    assert trl.BACKEND.parse(plan.argv, plan.files).loss == asked.settings.loss
    own = [entry for entry in plan.ledger if entry.field.startswith("loss.correction.")]
    assert [entry.status for entry in own] == ["exact"] * 4


@pytest.mark.parametrize(
    ("loss", "gpus", "field"),
    [
        ({"correction": {"kind": "geometric", "most": 2.0}}, 1, "loss.correction.kind"),
        (
            {"correction": {"kind": "tis_token", "most": 2.0, "applies_to": "both"}},
            1,
            "loss.correction.applies_to",
        ),
        ({"policy": "vespo", "correction": {"kind": "tis_token"}}, 1, "loss.correction"),
        ({"correction": {"kind": "tis_token", "most": 2.0}}, 0, "loss.correction"),
    ],
)
def test_a_weight_that_trl_has_not_is_refused(
    loss: Mapping[str, Any], gpus: int, field: str
) -> None:
    with pytest.raises(UnsupportedSetting) as refused:
        trl.BACKEND.translate(corrected(loss, gpus), PLACE)
    assert refused.value.field == field
