"""Detect a source's format, and read its runs."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from orchestrator.errors import EnvironmentFault
from orchestrator.imports import mlflow, tensorboard, trackio, trainer_state, wandb
from orchestrator.imports.source import LoggedRun, UnreadableSource

FORMATS = (
    "W&B (a CSV of a chart or a history, a history as JSON lines, a folder wandb/run-*), "
    "TensorBoard (events.out.tfevents.*), trackio (a .db or .parquet), Transformers "
    "(trainer_state.json or an output_dir), MLflow (sqlite:///mlflow.db or http://host:5000)"
)
_STORES = ("sqlite:", "postgresql:", "mysql:", "mssql:", "http://", "https://", "databricks")


def open_source(
    source: str, *, experiment: str | None = None, runs: Sequence[str] = ()
) -> list[LoggedRun]:
    """Return the runs of a path or of an MLflow address, in the order of the source.

    experiment: of MLflow. runs: names or ids of those wanted; none: all. Raise UnreadableSource
    for what holds no run, or not those.
    """
    if source.startswith(_STORES):
        return _of_mlflow(source, experiment, runs)
    path = Path(os.path.normpath(Path(source).expanduser().absolute()))
    if not path.exists():
        raise UnreadableSource(f"{source} is not there; orch import reads {FORMATS}")
    if path.is_file() and path.suffix == ".db" and not trackio.is_project(path):
        return _of_mlflow(f"sqlite:///{path.absolute()}", experiment, runs)
    try:
        readable = list(_reader(path)(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableSource(f"{path} cannot be read: {error}") from None
    chosen = [run for run in readable if not runs or run.name in runs]
    if not chosen:
        names = ", ".join(run.name for run in readable)
        raise UnreadableSource(f"{path} has no run {' or '.join(runs)} (it has: {names})")
    return chosen


def _of_mlflow(uri: str, experiment: str | None, runs: Sequence[str]) -> list[LoggedRun]:
    if not find_spec("mlflow"):
        raise EnvironmentFault(
            f"{uri} is a store of MLflow, which is not installed: pip install 'orch-rl[run]'"
        )

    return list(mlflow.read_store(uri, experiment, runs))


Reader = Callable[[Path], Iterator[LoggedRun]]


def _reader(path: Path) -> Reader:
    """Return what reads a path. Raise UnreadableSource for a path of no known format."""
    reader = _of_folder(path) if path.is_dir() else _of_file(path)
    if reader is None:
        raise UnreadableSource(f"{path} is in no format that orch knows; it reads {FORMATS}")
    return reader


def _of_file(path: Path) -> Reader | None:
    readers: dict[str, Reader] = {
        ".csv": wandb.read_csv,
        ".jsonl": wandb.read_history,
        ".ndjson": wandb.read_history,
        ".wandb": wandb.read_folder,
        ".db": trackio.read_project,
        ".parquet": trackio.read_parquet,
    }
    if path.name.startswith("events.out.tfevents."):
        return tensorboard.read_folder
    if path.suffix == ".json":
        return trainer_state.read_state if _has_log_history(path) else wandb.read_history
    return readers.get(path.suffix)


def _has_log_history(path: Path) -> bool:
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        plain = json.loads(text)
    except ValueError:
        return path.name == trainer_state.NAME
    return isinstance(plain, dict) and "log_history" in plain


def _of_folder(path: Path) -> Reader | None:
    if wandb.run_folders(path):
        return lambda place: (
            r for each in wandb.run_folders(place) for r in wandb.read_folder(each)
        )
    if trainer_state.newest(path) is not None:
        return lambda place: trainer_state.read_state(trainer_state.newest(place) or place)
    if tensorboard.event_files(path):
        return tensorboard.read_folder
    return None
