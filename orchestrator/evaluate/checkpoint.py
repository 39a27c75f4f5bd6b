"""What a checkpoint is, for the cache of scores: the content of the files that make the policy."""

import hashlib
from pathlib import Path

from orchestrator.errors import CheckpointError

_POLICY_FILES = {".safetensors", ".bin", ".json", ".txt", ".model", ".jinja"}

Stamp = dict[str, tuple[int, int]]
"""File name -> bytes, time of last change in nanoseconds: as long as it holds, so does the hash."""


def stamp(path: Path) -> Stamp:
    """The files of the policy saved there. Raises CheckpointError if it is no policy."""
    try:
        files = sorted(f for f in path.iterdir() if f.suffix in _POLICY_FILES and f.is_file())
        stats = {file.name: file.stat() for file in files}
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
    """A hash of the names and the content of these files."""
    total = hashlib.sha256()
    try:
        for name in files:
            with (path / name).open("rb") as file:
                total.update(
                    f"{name}\n{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode()
                )
    except OSError as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {error.strerror}") from error
    return total.hexdigest()
