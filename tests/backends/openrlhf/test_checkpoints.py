"""Finding what a run saved."""

import json
import struct
from pathlib import Path

from backends.openrlhf import BACKEND


def save(path: Path, *, shards: int = 1) -> Path:
    """A Hugging Face directory as the library leaves it."""
    path.mkdir(parents=True)
    header = json.dumps(
        {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "__metadata__": {}}
    ).encode()
    tensors = struct.pack("<Q", len(header)) + header + bytes(8)
    names = [f"model-{i}-of-{shards}.safetensors" for i in range(shards)]
    if shards == 1:
        names = ["model.safetensors"]
    else:
        index = {"weight_map": {f"w{i}": name for i, name in enumerate(names)}}
        (path / "model.safetensors.index.json").write_text(json.dumps(index))
    for name in names:
        (path / name).write_bytes(tensors)
    for name in ("config.json", "tokenizer_config.json"):
        (path / name).write_text("{}")
    return path


def test_checkpoints_are_counted_in_train_steps(tmp_path: Path) -> None:
    saved = tmp_path / "a 'b'\n" / "checkpoints"
    save(saved / "global_step-x4" / "global_step50_hf", shards=2)
    save(saved / "global_step-x4" / "global_step9_hf")
    save(saved / "step-1000")
    (saved / "global_step-x4" / "_actor" / "global_step50").mkdir(parents=True)
    found = BACKEND.find_checkpoints(saved)
    assert [(c.step, c.needs_export) for c in found] == [(36, False), (200, False), (1000, False)]
    assert found[0].path == saved / "global_step-x4" / "global_step9_hf"
    assert BACKEND.export_command(found[0], tmp_path) is None


def test_the_last_policy_is_found_once(tmp_path: Path) -> None:
    save(tmp_path / "global_step-x2" / "global_step5_hf")
    save(tmp_path / "step-10")
    assert [c.path.name for c in BACKEND.find_checkpoints(tmp_path)] == ["step-10"]
