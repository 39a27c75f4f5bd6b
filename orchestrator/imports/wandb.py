"""Read W&B: a chart's or a history's CSV, a history as JSON lines, and a local run's folder.

A local run is `wandb/run-<time>-<id>/` or `offline-run-...`: `run-<id>.wandb` holds its history,
`files/` its settings and packages once it was online. wandb 0.31 has no Python reader of that file
any more, so it is read here: LevelDB's log format (a header of 7 bytes, blocks of 32 KiB, records
with checksum, length and type), each record a protobuf of wandb_internal.proto.
"""

import csv
import io
import json
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from orchestrator.imports.logged import (
    Ended,
    LoggedRow,
    LoggedRun,
    UnreadableSource,
    digest,
    digest_of,
    flattened,
    numbers,
)
from orchestrator.metrics.tensorboard import protobuf_fields

HEADER, BLOCK, RECORD_HEADER = 7, 32768, 7
_MIDDLE, _LAST, _FIRST, _FULL = 3, 4, 2, 1
_HISTORY, _CONFIG, _RUN, _EXIT, _ENVIRONMENT = 2, 5, 17, 18, 26
_ITEM, _KEY, _NESTED_KEY, _JSON = 1, 1, 2, 16
_STEP, _STEP_NUMBER, _RUN_CONFIG, _RUN_NAME, _EXIT_CODE = 2, 1, 4, 8, 1
"""Numbers of the fields in wandb_internal.proto: of a record, of its items, of the other parts."""
_OF_STEP = ("_step", "Step", "step")
_OF_TIME = ("_timestamp", "Timestamp")
_BOUNDS = ("__MIN", "__MAX")
"""Columns that a chart's CSV has beside each curve."""


def read_csv(path: Path) -> Iterator[LoggedRun]:
    """Yield the runs of a CSV: of a chart (`<run> - <metric>`), or of one run's history."""
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    rows = list(csv.DictReader(io.StringIO(text)))
    if not rows:
        raise UnreadableSource(f"{path} has no row; export the chart or the history again")
    columns = [name for name in rows[0] if name and not name.endswith(_BOUNDS)]
    content = digest(path.read_bytes())
    charted = [name for name in columns if " - " in name]
    if not charted:
        yield LoggedRun(path.stem, "wandb csv", str(path), content, _history(rows, path))
        return
    step = next((name for name in columns if name not in charted), "")
    runs: dict[str, dict[str, str]] = {}
    for name in charted:
        run, _, metric = name.rpartition(" - ")
        if not metric.startswith("_"):
            runs.setdefault(run, {})[name] = metric
    for run, names in runs.items():
        own = [{"Step": row[step], **{names[n]: row[n] for n in names}} for row in rows]
        yield LoggedRun(run, "wandb csv", f"{path} ({run})", content, _history(own, path))


def read_history(path: Path) -> Iterator[LoggedRun]:
    """Yield the run of a history as JSON lines, or as a list in JSON (`run.history()`)."""
    text = path.read_text(encoding="utf-8", errors="replace")
    notes = []
    try:
        rows = json.loads(text) if text.lstrip().startswith("[") else None
    except ValueError as error:
        raise UnreadableSource(f"{path} is cut off or no JSON: {error}") from None
    if rows is None:
        rows = []
        for number, line in enumerate(text.splitlines(), 1):
            try:
                rows.append(json.loads(line))
            except ValueError:
                if line.strip():
                    notes.append(f"line {number} is no JSON; it is left out")
    # A cell of orch and verl's own file have their metrics one level down.
    objects = [{**row, **_nested(row)} for row in rows if isinstance(row, dict)]
    if not objects:
        raise UnreadableSource(f"{path} has no JSON object with metrics; export the history again")
    yield LoggedRun(
        path.stem,
        "wandb history",
        str(path),
        digest(path.read_bytes()),
        _history(objects, path),
        notes=notes,
    )


def _nested(row: dict[str, Any]) -> dict[str, Any]:
    inner = row.get("values", row.get("data"))
    return inner if isinstance(inner, dict) else {}


def _history(rows: list[dict[str, Any]], path: Path) -> list[LoggedRow]:
    step = next((name for name in _OF_STEP if name in rows[0]), None)
    time = next((name for name in _OF_TIME if name in rows[0]), None)
    logged = []
    for number, row in enumerate(rows):
        values = numbers(row, (*_OF_STEP, *_OF_TIME, "_runtime", "_wandb", "", "Unnamed: 0"))
        at = numbers({"step": row.get(step)}).get("step", -1.0) if step else float(number)
        if values and at >= 0:
            seconds = numbers({"time": row.get(time)}).get("time", 0.0) if time else 0.0
            logged.append(LoggedRow(int(at), seconds, values))
    if not logged:
        raise UnreadableSource(f"{path} has no row with a step and a number in it")
    return logged


# ------------------------------------------------------------------------------- a folder of a run


def run_folders(path: Path) -> list[Path]:
    """Return the folders of runs at a path: itself, or those in a folder `wandb`."""
    if any(path.glob("run-*.wandb")) or (path / "files" / "wandb-summary.json").is_file():
        return [path]
    inside = [*path.glob("run-*/"), *path.glob("offline-run-*/")]
    return sorted(each for each in inside if run_folders(each))


def read_folder(path: Path) -> Iterator[LoggedRun]:
    """Yield the run of a local folder, or of a `.wandb` file alone."""
    files = path / "files"
    stored = path if path.is_file() else next(iter(sorted(path.glob("run-*.wandb"))), None)
    notes: list[str] = []
    log = _Log() if stored is None else _Log.of(stored, notes)
    settings = dict(log.settings)
    for name, value in (_yaml(files / "config.yaml", notes)).items():
        if not name.startswith("_") and name != "wandb_version":
            settings[name] = value.get("value") if isinstance(value, dict) else value
    settings.pop("_wandb", None)
    summary = _json(files / "wandb-summary.json", notes)
    rows = log.rows
    if not rows and summary:
        notes.append("only its last values are here (wandb-summary.json), and no curve")
        rows = _history([dict(summary)], files)
    if not rows:
        raise UnreadableSource(
            f"{path} holds no history yet: the run logged nothing, or is cut off"
        )
    read = [files / n for n in ("config.yaml", "wandb-summary.json", "requirements.txt")]
    existing = [each for each in (stored, *read) if each is not None and each.is_file()]
    yield LoggedRun(
        log.name or path.stem,
        "wandb folder",
        str(path),
        digest_of(existing),
        rows,
        flattened(settings),
        _packages(files / "requirements.txt"),
        "W&B",
        log.ended,
        notes,
    )


class _Log:
    """The content of a `.wandb` file."""

    def __init__(self) -> None:
        self.rows: list[LoggedRow] = []
        self.settings: dict[str, Any] = {}
        self.name = ""
        self.ended: Ended = "unknown"

    @classmethod
    def of(cls, path: Path, notes: list[str]) -> "_Log":
        """Read a file up to where it is cut off."""
        log = cls()
        try:
            for record in _records(path.read_bytes()):
                log._add(record)
        except (ValueError, struct.error, IndexError, UnicodeDecodeError):
            notes.append(f"{path.name} is cut off after {len(log.rows)} rows; those are read")
        return log

    def _add(self, record: bytes) -> None:
        for number, value in _messages(record):
            if number == _HISTORY:
                self._add_history(value)
            elif number == _CONFIG:
                self.settings |= _items(value)
            elif number == _RUN:
                self._add_run(value)
            elif number == _EXIT:
                code = dict(protobuf_fields(value)).get(_EXIT_CODE, 0)
                self.ended = "failed" if code else "finished"

    def _add_run(self, run: bytes) -> None:
        for number, value in _messages(run):
            if number == _RUN_NAME:
                self.name = value.decode()
            elif number == _RUN_CONFIG:
                self.settings |= _items(value)

    def _add_history(self, history: bytes) -> None:
        row = _items(history)
        step = row.get("_step")
        for number, value in _messages(history):
            if number == _STEP and step is None:
                step = dict(protobuf_fields(value)).get(_STEP_NUMBER, 0)
        values = numbers(row, ("_step", "_timestamp", "_runtime"))
        if values:
            time = row.get("_timestamp")
            seconds = float(time) if isinstance(time, int | float) else 0.0
            self.rows.append(LoggedRow(int(step or 0), seconds, values))


def _records(content: bytes) -> Iterator[bytes]:
    """Yield the records of LevelDB's log format. Raise ValueError where it is cut off."""
    if content[:4] != b":W&B":
        raise ValueError("no file of W&B")
    at, parts = HEADER, b""
    while at + RECORD_HEADER <= len(content):
        # LevelDB's blocks have a fixed size. The end of one that has no room for a header is empty.
        room = BLOCK - at % BLOCK
        if room < RECORD_HEADER:
            at += room
            continue
        length, kind = struct.unpack("<HB", content[at + 4 : at + RECORD_HEADER])
        at += RECORD_HEADER
        if kind not in (_FULL, _FIRST, _MIDDLE, _LAST):
            if kind == 0 and length == 0:  # zeros fill a block
                at += max(room - RECORD_HEADER, 0)
                continue
            raise ValueError(f"a record of kind {kind}")
        if at + length > len(content):
            raise ValueError("a record that is cut off")
        part = content[at : at + length]
        at += length
        # A record that is longer than the rest of its block continues in the next ones.
        parts = part if kind in (_FULL, _FIRST) else parts + part
        if kind in (_FULL, _LAST):
            yield parts


def _messages(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the content of each field that holds bytes: text or a message."""
    for number, value in protobuf_fields(message):
        if isinstance(value, bytes):
            yield number, value


def _items(message: bytes) -> dict[str, Any]:
    """Return the items of a history or configuration record: (nested) key -> value."""
    items: dict[str, Any] = {}
    for number, item in _messages(message):
        if number != _ITEM:
            continue
        parts = list(_messages(item))
        nested = [value.decode() for name, value in parts if name == _NESTED_KEY]
        fields = dict(parts)
        key = ".".join(nested) or fields.get(_KEY, b"").decode()
        encoded = fields.get(_JSON)
        items[key] = json.loads(encoded) if encoded else None
    return items


def _yaml(path: Path, notes: list[str]) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        plain = yaml.safe_load(path.read_text(encoding="utf-8", errors="replace"))
    except yaml.YAMLError:
        plain = None
    if not isinstance(plain, dict):
        notes.append(f"{path.name} cannot be read: its settings are unknown")
        return {}
    return plain


def _json(path: Path, notes: list[str]) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        plain = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except ValueError:
        plain = None
    if not isinstance(plain, dict):
        notes.append(f"{path.name} cannot be read")
        return {}
    return plain


_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;]+)", re.MULTILINE)


def _packages(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    text = path.read_text(encoding="utf-8", errors="replace")
    return {name.lower().replace("_", "-"): release for name, release in _PINNED.findall(text)}
