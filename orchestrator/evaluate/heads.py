"""A Llama with wider attention heads that computes the same: for engines without narrow ones.

    python -m orchestrator.evaluate.heads CHECKPOINT NEW_FOLDER

vLLM has no attention for heads narrower than 32 numbers, nor for some wider ones. Queries, keys and
values get zeros, which add nothing to a dot product; what turns with a position keeps its
frequency, since theta ** (2 j / width) is kept by a larger theta; and the queries are multiplied by
what the larger divisor, the square root of the width, takes away.
"""

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.errors import CheckpointError

WIDTHS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Widths of heads for which vLLM 0.29.0 has attention on a CPU."""
WEIGHTS, CONFIG = "model.safetensors", "config.json"


def missing_width(checkpoint: Path, *, cpu: bool) -> int | None:
    """Return the width to which a checkpoint's heads must be padded; None if they need no padding.

    On a GPU, every multiple of 8 from 32 to 256 needs none. Return None too if the checkpoint is
    not a Llama in one file: its engine accepts or refuses it.
    """
    try:
        config = json.loads((checkpoint / CONFIG).read_text(encoding="utf-8"))
        width = _width(config)
    except (OSError, ValueError, KeyError):
        return None
    if width in WIDTHS or (not cpu and 32 <= width <= 256 and width % 8 == 0):
        return None
    if config.get("model_type") != "llama" or not (checkpoint / WEIGHTS).exists():
        return None
    return next((each for each in WIDTHS if each >= width), None)


def positions(checkpoint: Path) -> int | None:
    """Return the number of tokens of a checkpoint's longest text, or None if its config has
    none."""
    try:
        config = json.loads((checkpoint / CONFIG).read_text(encoding="utf-8"))
        return int(config["max_position_embeddings"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def pad(checkpoint: Path, folder: Path, width: int) -> None:
    """Write a copy of a Llama whose heads have this width into a new folder.

    Raise CheckpointError if its rotary embedding is not the standard one.
    """
    from safetensors.torch import load_file, save_file

    config = json.loads((checkpoint / CONFIG).read_text(encoding="utf-8"))
    narrow = _width(config)
    rotation = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if rotation.get("rope_type", rotation.get("type", "default")) != "default":
        raise CheckpointError(
            f"checkpoint {checkpoint} has rotations of type '{rotation.get('rope_type')}': heads "
            f"of {narrow} cannot be padded to {width}; evaluate it with evaluation.engine.name=hf"
        )
    theta = rotation.get("rope_theta") or config.get("rope_theta") or 10000.0
    wider = theta ** (width / narrow)
    config |= {"head_dim": width, "rope_theta": wider}
    if config.get("rope_parameters"):
        config["rope_parameters"] = rotation | {"rope_theta": wider}
    folder.mkdir(parents=True, exist_ok=True)
    for path in checkpoint.iterdir():
        if path.is_file() and path.name not in (WEIGHTS, CONFIG):
            shutil.copy(path, folder / path.name)
    weights = load_file(checkpoint / WEIGHTS)
    padded = {name: _padded(name, weight, narrow, width) for name, weight in weights.items()}
    save_file(padded, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def _width(config: Mapping[str, Any]) -> int:
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return int(width)


def _padded(name: str, weight: Any, narrow: int, width: int) -> Any:
    """Return one tensor of the wider model.

    Each half of a head keeps its place in its half: number j is turned together with number j +
    width / 2.
    """
    import torch

    projection = name.rpartition(".")[0].rpartition(".")[2]
    if projection not in ("q_proj", "k_proj", "v_proj", "o_proj"):
        return weight
    if projection == "o_proj":
        if weight.dim() == 1:  # a bias, of the width of the model
            return weight
        # o_proj has the heads in its columns, the others in their rows.
        weight = weight.T
    halves = weight.reshape(-1, 2, narrow // 2, *weight.shape[1:])
    zeros = torch.zeros(
        len(halves), 2, (width - narrow) // 2, *weight.shape[1:], dtype=weight.dtype
    )
    wide = torch.cat([halves, zeros], dim=2).reshape(-1, *weight.shape[1:])
    if projection == "q_proj":
        wide = wide * (width / narrow) ** 0.5
    return (wide.T if projection == "o_proj" else wide).contiguous()


def main(argv: Sequence[str]) -> None:
    """Write a copy that vLLM's CPU build can serve."""
    if len(argv) != 2:
        raise SystemExit("python -m orchestrator.evaluate.heads CHECKPOINT NEW_FOLDER")
    checkpoint, folder = map(Path, argv)
    width = missing_width(checkpoint, cpu=True)
    if width is None:
        raise SystemExit(
            f"{checkpoint} needs no copy: its heads are as vLLM has them, or it is no Llama with "
            f"{CONFIG} and {WEIGHTS}; serve it as it is"
        )
    pad(checkpoint, folder, width)


if __name__ == "__main__":
    main(sys.argv[1:])
