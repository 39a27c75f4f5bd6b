"""What SkyRL exports, found again."""

import json
from pathlib import Path

from backends.skyrl import BACKEND
from backends.skyrl.overrides import read
from orchestrator.records import AttemptPaths
from tests.backends.skyrl.cells import changed, onpolicy


def export(folder: Path) -> Path:
    """A Hugging Face directory as SkyRL leaves one."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text("{}")
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    whole = len(header).to_bytes(8, "little") + header + bytes(16)
    (folder / "model.safetensors").write_bytes(whole)
    return folder


def test_a_launch_exports_where_they_are_looked_for(tmp_path: Path) -> None:
    cell = onpolicy()
    batch = cell.settings.batch.model_validate({"num_prompts": 1024, "num_minibatches": 4})
    cell = changed(cell, batch=batch, num_train_steps=1000)
    plan = BACKEND.translate(cell, AttemptPaths(tmp_path / "p", tmp_path / "a", tmp_path / "c"))
    told = read(plan.argv)
    assert told["trainer.hf_save_interval"] == 13, "50 train steps, in whole rollout batches"
    assert told["trainer.max_training_steps"] == 250
    export(Path(str(told["trainer.export_path"])) / "global_step_250" / "policy")
    (found,) = BACKEND.find_checkpoints(tmp_path / "c")
    assert found.step == cell.settings.num_train_steps, "SkyRL counts rollout batches"
    assert BACKEND.export_command(found, tmp_path / "x") is None
    assert plan.env["TENSORBOARD_DIR"] == str(tmp_path / "a" / "tensorboard-x4")
