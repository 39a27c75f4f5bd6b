"""Read trackio: a project's SQLite file, or the Parquet that it syncs."""

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from orchestrator.imports.source import (
    LoggedRow,
    LoggedRun,
    UnreadableSource,
    digest,
    flattened,
    numbers,
)

_TIME = ("timestamp", "_timestamp")


def is_project(path: Path) -> bool:
    """Return whether a SQLite file is a project of trackio's."""
    try:
        with contextlib.closing(_opened(path)) as base:
            names = {row[0] for row in base.execute("SELECT name FROM sqlite_master")}
    except sqlite3.Error:
        return False
    return "metrics" in names and "experiments" not in names


def read_project(path: Path) -> Iterator[LoggedRun]:
    """Yield the runs of a project. Raise UnreadableSource for a file that is none."""
    try:
        with contextlib.closing(_opened(path)) as base:
            columns = {row[1] for row in base.execute("PRAGMA table_info(metrics)")}
            key = "run_id" if "run_id" in columns else "run_name"
            rows = base.execute(
                f"SELECT {key}, run_name, timestamp, step, metrics FROM metrics ORDER BY id"  # noqa: S608 - `key` is one of two words above
            ).fetchall()
            settings = _settings(base)
    except sqlite3.Error as error:
        raise UnreadableSource(f"{path} is no project of trackio's: {error}") from None
    if not rows:
        raise UnreadableSource(f"{path} holds no row: no run of the project logged anything")
    runs: dict[str, list[tuple[Any, ...]]] = {}
    for row in rows:
        runs.setdefault(row[0], []).append(row)
    for own in runs.values():
        name = own[0][1]
        logged = [_row(step, time, json.loads(text)) for _, _, time, step, text in own]
        yield LoggedRun(
            name,
            "trackio",
            f"{path} ({name})",
            digest(*(repr(row).encode() for row in own)),
            [row for row in logged if row.values],
            settings.get(own[0][0], {}),
            written_by="trackio",
        )


def read_parquet(path: Path) -> Iterator[LoggedRun]:
    """Yield the runs of a Parquet file; needs the extra `run`, which has pandas."""
    import pandas as pd

    table = pd.read_parquet(path)
    if not {"run_name", "step"} <= {*table.columns}:
        raise UnreadableSource(f"{path} has no columns run_name and step: it is not trackio's")
    content_digest = digest(path.read_bytes())
    for name, own in table.groupby("run_name", sort=False):
        plain: Iterable[dict[str, Any]] = own.to_dict("records")
        yield LoggedRun(
            str(name),
            "trackio",
            f"{path} ({name})",
            content_digest,
            [row for row in (_flat_row(each) for each in plain) if row.values],
            written_by="trackio",
        )


def _flat_row(row: Mapping[str, Any]) -> LoggedRow:
    text = row.get("metrics")
    values = json.loads(text) if isinstance(text, str | bytes) else row
    time = next((row[name] for name in _TIME if name in row), "")
    return _row(int(row["step"]), str(time), values)


def _row(step: int, time: str, values: Mapping[str, Any]) -> LoggedRow:
    try:
        seconds = datetime.fromisoformat(time).timestamp()
    except ValueError:
        seconds = 0.0
    known = numbers(values, ("step", "run_name", "run_id", "id", "log_id", "space_id", *_TIME))
    return LoggedRow(step, seconds, {n: v for n, v in known.items() if v == v})


def _settings(base: sqlite3.Connection) -> dict[str, dict[str, Any]]:
    """Return the settings of each run, by its id or its name."""
    try:
        columns = {row[1] for row in base.execute("PRAGMA table_info(configs)")}
        key = "run_id" if "run_id" in columns else "run_name"
        rows = base.execute(f"SELECT {key}, config FROM configs").fetchall()  # noqa: S608 - as above
    except sqlite3.Error:
        return {}
    settings = {}
    for name, text in rows:
        plain = json.loads(text)
        settings[name] = {k: v for k, v in flattened(plain).items() if not k.startswith("_")}
    return settings


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
