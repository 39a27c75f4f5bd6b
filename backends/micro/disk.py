"""Read and write the files of the embedded trainer without loading torch.

metrics.jsonl                      one line per train step
checkpoints/step-<n>/              a Hugging Face directory, and state.safetensors
checkpoints/resume.safetensors     the newest state that is in no checkpoint, while training lasts
"""

import contextlib
import json
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic_core import from_json

from backends.micro.version import VERSION
from orchestrator.library.checkpoints import TEXTS, is_complete, numbered
from orchestrator.library.logged import check_names
from orchestrator.metrics.names import is_canonical
from orchestrator.records import Checkpoint, MetricPoint

METRICS, STATE, RESUME, MODEL = (
    "metrics.jsonl",
    "state.safetensors",
    "resume.safetensors",
    "model.safetensors",
)
_TEXTS = (*TEXTS, "tokenizer.json")


def step_dir(checkpoints_dir: Path, step: int) -> Path:
    """Return the folder of the checkpoint of a train step."""
    return checkpoints_dir / f"step-{step}"


def find_checkpoints(checkpoints_dir: Path) -> list[Checkpoint]:
    """Return the complete checkpoints, oldest first."""
    return [
        checkpoint for checkpoint in all_checkpoints(checkpoints_dir) if is_whole(checkpoint.path)
    ]


def resumable_step(checkpoints_dir: Path) -> int:
    """Return the train step of the newest checkpoint or rolling state; 0 without one."""
    newest = [checkpoint.step for checkpoint in find_checkpoints(checkpoints_dir)]
    broken = (OSError, ValueError, KeyError, TypeError)
    with contextlib.suppress(*broken), (checkpoints_dir / RESUME).open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))  # of safetensors
        newest.append(int(header["__metadata__"]["step"]))
    return max(newest, default=0)


def all_checkpoints(checkpoints_dir: Path) -> list[Checkpoint]:
    """Return all checkpoints, complete or cut off, oldest first."""
    return [Checkpoint(step, path) for step, path in numbered(checkpoints_dir, "step-")]


def begun_checkpoints(checkpoints_dir: Path) -> list[Path]:
    """Return the folder of every checkpoint, complete or cut off, oldest first."""
    return [checkpoint.path for checkpoint in all_checkpoints(checkpoints_dir)]


def is_whole(checkpoint: Path) -> bool:
    """Return True if a checkpoint has all of its files and none of them is cut off."""
    return is_complete(checkpoint, _TEXTS)


def read_metrics(attempt_dir: Path) -> Iterator[MetricPoint]:
    """Yield the metrics of an attempt in file order. Stop at the first line that cannot be read.

    Raise LogFault after the last point if the log has no canonical name.
    """
    names: set[str] = set()
    path = attempt_dir / METRICS
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        for line in file:
            try:
                plain = from_json(line)  # a third of the time of json.loads
                point = MetricPoint(plain["step"], plain["time"], plain["values"])
            except (ValueError, KeyError, TypeError):
                break
            names.update(point.values)
            yield point
    check_names(path, "micro", (VERSION,), names, filter(is_canonical, names))


class Journal:
    """The file metrics.jsonl of an attempt, open for appending. Each line is one write."""

    def __init__(self, attempt_dir: Path):
        attempt_dir.mkdir(parents=True, exist_ok=True)
        path = attempt_dir / METRICS
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        size = os.fstat(self._descriptor).st_size
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":  # cut off by a kill
            # Removed, because `read_metrics` stops at a line that it cannot read.
            os.ftruncate(self._descriptor, path.read_bytes().rfind(b"\n") + 1)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Append one train step. JSON has no infinity, so leave out values that are not finite."""
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        line = json.dumps({"step": step, "time": time.time(), "values": finite})
        os.write(self._descriptor, line.encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a temporary path next to `target`, for a new file or directory.

    Move it to `target` at the end, so that a reader finds `target` complete or not at all.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        yield temporary
        # A rename does not replace a folder with files in it. The trainer replaces a checkpoint
        # only if it is cut off, so a kill between these lines loses nothing.
        if target.is_dir():
            shutil.rmtree(target)
        temporary.replace(target)
    finally:
        _remove(temporary)


def sweep(checkpoints_dir: Path) -> None:
    """Remove the temporary files and directories that a killed process left."""
    for leftover in checkpoints_dir.glob(".*.*"):
        _remove(leftover)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
