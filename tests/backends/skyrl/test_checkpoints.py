"""What SkyRL exports, found again."""

import json
from pathlib import Path

from backends.skyrl import BACKEND
from backends.skyrl.overrides import read
from orchestrator.records import AttemptPaths
from tests.backends.skyrl.cells import changed, onpolicy


def weights(path: Path, *, cut: int = 0) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    whole = len(header).to_bytes(8, "little") + header + bytes(16)
    path.write_bytes(whole[: len(whole) - cut])


def export(folder: Path, *, shards: int = 1, cut: int = 0) -> Path:
    """A Hugging Face directory as SkyRL leaves one."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text("{}")
    if shards == 1:
        weights(folder / "model.safetensors", cut=cut)
        return folder
    names = [f"model-{n:05}-of-{shards:05}.safetensors" for n in range(1, shards + 1)]
    index = {"weight_map": {f"w{n}": name for n, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for name in names:
        weights(folder / name, cut=cut if name == names[-1] else 0)
    return folder


def test_exports_are_found_by_train_step(tmp_path: Path) -> None:
    """SkyRL counts rollout batches; of four minibatches each, its 50 is train step 200."""
    exports = tmp_path / "exports-x4"
    late = export(exports / "global_step_100" / "policy", shards=3)
    early = export(exports / "global_step_50" / "policy")
    found = BACKEND.find_checkpoints(tmp_path)
    assert [(c.step, c.path, c.needs_export) for c in found] == [
        (200, early, False),
        (400, late, False),
    ]
    assert BACKEND.export_command(found[0], tmp_path / "x") is None


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
    assert found.step == cell.settings.num_train_steps
    assert plan.env["TENSORBOARD_DIR"] == str(tmp_path / "a" / "tensorboard-x4")
