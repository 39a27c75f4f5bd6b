"""Find numbered folders, and check if a Hugging Face directory is complete: a kill may cut off a
trainer's last one."""

import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

MODEL, INDEX = "model.safetensors", "model.safetensors.index.json"
TEXTS = ("config.json", "tokenizer_config.json")
"""JSON files without which no policy loads."""


def numbered(folder: Path, before: str, after: str = "") -> list[tuple[int, Path]]:
    """Return the folders <before><number><after> in a folder, by their numbers; [] without it."""
    name = re.compile(f"{re.escape(before)}([0-9]+){re.escape(after)}")
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        found = [(name.fullmatch(entry.name), Path(entry)) for entry in entries if entry.is_dir()]
        return sorted((int(match[1]), path) for match, path in found if match)
    return []


def is_complete(folder: Path, texts: Sequence[str] = TEXTS) -> bool:
    """Return True if a directory has these JSON files and all its weights, and none is cut off.

    Weights are one file, or the shards that its index names.
    """
    try:
        if not all(isinstance(json.loads((folder / name).read_bytes()), dict) for name in texts):
            return False
        shards = {MODEL}
        if (folder / INDEX).exists():
            shards = set(json.loads((folder / INDEX).read_bytes())["weight_map"].values())
        return bool(shards) and all(has_all_tensors(folder / shard) for shard in shards)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def has_all_tensors(path: Path) -> bool:
    """Return True if a safetensors file has the length that its header implies.

    Raise OSError for a file without a header.
    """
    return bool(tensors_of(path)[1])


def tensors_of(path: Path) -> tuple[int, dict[str, dict[str, Any]]]:
    """Return where the tensors of a safetensors file begin, and each by its name: dtype, shape and
    data_offsets; none if the file is cut off.

    A safetensors file is 8 bytes with the header's length, the header in JSON, then the tensors.
    Raise ValueError, KeyError, TypeError or AttributeError for a file of another format.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        size = os.fstat(file.fileno()).st_size
        if length > size:
            return 0, {}
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    ends = [tensor["data_offsets"][1] for tensor in header.values()]
    return 8 + length, header if ends and size == 8 + length + max(ends) else {}
