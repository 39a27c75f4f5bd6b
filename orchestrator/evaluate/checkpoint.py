"""The identity of a checkpoint, for the cache of scores and the seed of sampling: its policy's
content.

The policy consists of the files that `transformers` and vLLM read: weights, config, generation
config, tokenizer and chat template. Other files of the folder (optimizer state, the trainer's
arguments) are no part of it. Weights are hashed tensor by tensor. So the free metadata of
safetensors, which its library writes in no fixed order, and the division into shards are no part of
the hash. JSON is hashed by value, without the fields that only name its writer.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestrator.errors import CheckpointError
from orchestrator.library.checkpoints import tensors_of

_SAFETENSORS = ("model*.safetensors", "adapter_model*.safetensors", "consolidated*.safetensors")
_PICKLED = ("pytorch_model*.bin", "adapter_model*.bin")
"""Weights that transformers reads only if no safetensors exist."""
_TEXTS = (
    "config.json",
    "adapter_config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "*.model",
    "*.tiktoken",
    "chat_template.json",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
    "*.py",
)
_ABOUT_THE_WRITER = frozenset({"transformers_version", "_name_or_path", "name_or_path"})
"""Fields of a JSON file that name its origin and change nothing that is computed."""
_CHUNK = 1 << 20

Stamp = dict[str, tuple[int, int]]
"""File name -> bytes and time of last change in nanoseconds. While these are unchanged, the hash is
too."""


def stamp(path: Path) -> Stamp:
    """Return the stamp of the policy's files in a folder. Raise CheckpointError if it has no
    policy."""
    try:
        path.stat()
        stats = {file.relative_to(path).as_posix(): file.stat() for file in _policy_files(path)}
    except OSError as error:
        raise CheckpointError(
            f"checkpoint {path} cannot be read: {error.strerror}; `orch retry` trains the cell "
            "again"
        ) from error
    if "config.json" not in stats:
        raise CheckpointError(
            f"checkpoint {path} has no config.json, so it is not in Hugging Face format; "
            "`orch retry` trains the cell again"
        )
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}


def content_hash(path: Path, files: Stamp) -> str:
    """Return a hash of the content of these files: tensors by name, JSON by value, other files by
    bytes."""
    parts: list[tuple[str, str]] = []
    try:
        for name in files:
            file = path / name
            if file.suffix == ".safetensors":
                parts.extend(_tensor_hashes(file))
            elif file.suffix == ".json":
                parts.append((name, _json_hash(file)))
            else:
                parts.append((name, _byte_hash(file)))
    except OSError as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {error.strerror}") from error
    total = hashlib.sha256()
    for name, content in sorted(parts):
        total.update(f"{name}\n{content}\n".encode())
    return total.hexdigest()


def _policy_files(path: Path) -> list[Path]:
    weights = [file for pattern in _SAFETENSORS for file in path.glob(pattern)]
    if not weights:
        weights = [file for pattern in _PICKLED for file in path.glob(pattern)]
    texts = [file for pattern in _TEXTS for file in path.glob(pattern)]
    return sorted(file for file in {*weights, *texts} if file.is_file())


def _byte_hash(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _json_hash(file: Path) -> str:
    """Return the hash of a JSON value; of the bytes, if they are not JSON."""
    try:
        value: Any = json.loads(file.read_bytes())
    except ValueError:
        return _byte_hash(file)
    if isinstance(value, dict):
        value = {key: each for key, each in value.items() if key not in _ABOUT_THE_WRITER}
    text = json.dumps(value, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _tensor_hashes(file: Path) -> Iterator[tuple[str, str]]:
    """Yield (name, hash) of every tensor; of the whole file, if it is not a complete safetensors
    file."""
    try:
        begin, tensors = tensors_of(file)
        places = {name: (*each["data_offsets"], each) for name, each in tensors.items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        places = {}
    if not places:
        yield file.name, _byte_hash(file)
        return
    with file.open("rb") as opened:
        for name, (start, end, tensor) in sorted(places.items(), key=lambda each: each[1][:2]):
            total = hashlib.sha256(f"{tensor['dtype']} {list(tensor['shape'])}\n".encode())
            opened.seek(begin + start)
            remaining = end - start
            while remaining and (chunk := opened.read(min(_CHUNK, remaining))):
                total.update(chunk)
                remaining -= len(chunk)
            yield f"tensor {name}", total.hexdigest()
