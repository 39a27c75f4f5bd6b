"""Find the policies that a run saved as Hugging Face directories.

checkpoints/global_step-x<m>/global_step<n>_hf    after n rollout batches of m train steps each
checkpoints/step-<t>                              the last one, written when training ends
checkpoints/global_step-x<m>/_actor               DeepSpeed's state, for resuming; the library keeps
                                                  two of these, and never deletes the others
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from orchestrator.records import Checkpoint

_STEPS, _BATCHES, _FINAL = (
    re.compile(r"global_step-x([0-9]+)"),
    re.compile(r"global_step([0-9]+)_hf"),
    re.compile(r"step-([0-9]+)"),
)
STEPS_DIR = "global_step-x{}"
"""Directory whose `global_step<n>` are n rollout batches of so many train steps each."""
FINAL_DIR = "step-{}"
MODEL, INDEX = "model.safetensors", "model.safetensors.index.json"


def steps_per_batch(name: str) -> int | None:
    """Return the train steps of a library step, from the name that orch gave to the directory.

    Return None for another name.
    """
    match = _STEPS.fullmatch(name)
    return int(match[1]) if match else None


def find_checkpoints(checkpoints_dir: Path) -> list[Checkpoint]:
    """Return the complete checkpoints, oldest first.

    Of two with one step, return the last of the run.
    """
    found = {step: path for step, path in _saved(checkpoints_dir) if is_whole(path)}
    return [Checkpoint(step, found[step]) for step in sorted(found)]


def begun_checkpoints(checkpoints_dir: Path) -> list[Path]:
    """Return the Hugging Face directories, complete or not.

    Of two with one step, return the last.
    """
    return list(dict(_saved(checkpoints_dir)).values())


def _saved(root: Path) -> Iterator[tuple[int, Path]]:
    for name, path in _directories(root):
        steps = steps_per_batch(name)
        for inner, saved in _directories(path) if steps else ():
            if steps and (batches := _BATCHES.fullmatch(inner)):
                yield int(batches[1]) * steps, saved
    for name, path in _directories(root):
        if final := _FINAL.fullmatch(name):
            yield int(final[1]), path


def _directories(root: Path) -> list[tuple[str, Path]]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(root) as entries:
        return sorted((entry.name, Path(entry)) for entry in entries if entry.is_dir())
    return []


def is_whole(checkpoint: Path) -> bool:
    """Return True if a checkpoint has its configuration, its tokenizer and all its weights.

    The library writes the tokenizer last.
    """
    try:
        for name in ("config.json", "tokenizer_config.json"):
            json.loads((checkpoint / name).read_bytes())
        shards = {MODEL}
        if (checkpoint / INDEX).exists():
            shards = set(json.loads((checkpoint / INDEX).read_bytes())["weight_map"].values())
        return bool(shards) and all(_is_whole_tensors(checkpoint / shard) for shard in shards)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _is_whole_tensors(path: Path) -> bool:
    """Return True if a safetensors file is as long as its header says."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if length > size:
            return False
        header = json.loads(file.read(length))
    ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
    return bool(ends) and size == 8 + length + max(ends)
