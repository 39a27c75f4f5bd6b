"""Read TensorBoard's event files: scalars, and the settings that Transformers writes as a text."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.imports.source import (
    LoggedRow,
    LoggedRun,
    UnreadableSource,
    digest_of,
    flattened,
)
from orchestrator.metrics.tensorboard import scalars, texts

PATTERN = "events.out.tfevents.*"
MERGED = "{} event files of one folder are read as one run: at a step that two have, the later wins"
_SETTINGS = "args"
"""Transformers' TensorBoardCallback writes its arguments as JSON under this tag."""


def event_files(path: Path) -> list[Path]:
    """Return the event files at a path: itself, in the folder, or in folders below it."""
    return [path] if path.is_file() else sorted(path.rglob(PATTERN))


def read_folder(path: Path) -> Iterator[LoggedRun]:
    """Yield a run for each folder with event files: several files of one folder are one run."""
    folders: dict[Path, list[Path]] = {}
    for file in event_files(path):
        folders.setdefault(file.parent, []).append(file)
    if not folders:
        raise UnreadableSource(f"{path} holds no event file ({PATTERN})")
    for folder, files in folders.items():
        rows: dict[int, tuple[float, dict[str, float]]] = {}
        settings: dict[str, Any] = {}
        for file in files:
            for each in scalars(file):
                rows.setdefault(each.step, (each.time, {}))[1][each.tag] = each.value
            settings |= _settings(file)
        if not rows:
            continue
        place = path if path.is_file() else folder
        yield LoggedRun(
            place.name if path.is_file() else folder.name,
            "tensorboard",
            str(place),
            digest_of(files),
            [LoggedRow(step, time, values) for step, (time, values) in sorted(rows.items())],
            settings,
            notes=[MERGED.format(len(files))] if len(files) > 1 else [],
        )


def _settings(file: Path) -> Mapping[str, Any]:
    for tag, text in texts(file):
        if tag.partition("/")[0] != _SETTINGS:
            continue
        try:
            plain = json.loads(text)
        except ValueError:
            continue
        if isinstance(plain, dict):
            return flattened(plain)
    return {}
