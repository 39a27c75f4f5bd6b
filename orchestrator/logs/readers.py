"""Readers of logged runs: `open_source` detects the format of a path, and reads it.

The readers of a history, a console, TensorBoard and Transformers follow it.
"""

import csv
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from orchestrator import plugins
from orchestrator.logs.logged import LoggedRow, LoggedRun, UnreadableSource, numbers
from orchestrator.metrics.tensorboard import scalars

FORMATS = (
    "a history as CSV or JSON (lines, or a list), TensorBoard (events.out.tfevents.*), "
    "Transformers (trainer_state.json or an output_dir), the console of a trainer (a text file), "
    "a notebook that trained"
)


def open_source(source: str, *, runs: Sequence[str] = ()) -> list[LoggedRun]:
    """Return the runs of a path, in the order of the source.

    runs: names of those wanted; none: all. Raise UnreadableSource for what holds no run, or not
    those.
    """
    path = Path(os.path.normpath(Path(source).expanduser().absolute()))
    if not path.exists():
        raise UnreadableSource(f"{source} is not there; orch reads {FORMATS}")
    try:
        readable = [start for run in _reader(path)(path) for start in _starts(run)]
    except (OSError, ValueError) as error:
        raise UnreadableSource(f"{path} cannot be read: {error}") from None
    chosen = [run for run in readable if not runs or run.name in runs]
    if not chosen:
        names = ", ".join(run.name for run in readable)
        raise UnreadableSource(f"{path} has no run {' or '.join(runs)} (it has: {names})")
    return chosen


def _starts(run: LoggedRun) -> Iterator[LoggedRun]:
    """Yield a run for each time that the steps begin again, as in a file that runs are added to."""
    rows, first = run.rows, run.rows[0].step
    begins = [
        at
        for at, (before, after) in enumerate(pairwise(rows), 1)
        if after.step <= first < before.step
        and after.values.get("epoch", 0.0) <= before.values.get("epoch", 0.0)
    ]
    for number, (start, end) in enumerate(pairwise([0, *begins, len(rows)]), 1):
        name = f"{run.name} ({number} of {len(begins) + 1})" if begins else run.name
        yield replace(run, name=name, rows=rows[start:end])


Reader = Callable[[Path], Iterator[LoggedRun]]


def _reader(path: Path) -> Reader:
    """Return what reads a path. Raise UnreadableSource for a path of no known format."""
    if path.is_dir() and newest_state(path) is not None:
        return lambda place: read_history(newest_state(place) or place)
    if path.name.startswith("events.out.tfevents.") or (path.is_dir() and event_files(path)):
        return read_tensorboard
    if path.is_file() and path.suffix in _OF_HISTORY:
        return read_history
    if path.is_file() and path.suffix in _OF_CONSOLE:
        return read_console
    raise UnreadableSource(f"{path} is in no format that orch knows; it reads {FORMATS}")


# ---------------------------------------------------------------- a history


_OF_HISTORY = (".jsonl", ".ndjson", ".json", ".csv")
_OF_STEP = ("_step", "Step", "step")
_OF_TIME = ("_timestamp", "Timestamp")


def read_history(path: Path) -> Iterator[LoggedRun]:
    """Yield the run of a history as CSV, as JSON lines, as a list in JSON (`run.history()`), alone
    or under a name, as in Transformers' state, or as a list for each metric."""
    text = path.read_text(encoding="utf-8", errors="replace")
    rows: list[Any] = list(csv.DictReader(text.splitlines())) if path.suffix == ".csv" else []
    try:
        whole = json.loads(text)
        lists = whole if isinstance(whole, dict) else {"": whole}
        lists = {name: part for name, part in lists.items() if isinstance(part, list)}
        rows = [each for part in lists.values() for each in part]
        if rows and not any(isinstance(row, dict) for row in rows):
            longest = max(map(len, lists.values()))
            lists = {name: part for name, part in lists.items() if len(part) == longest}
            rows = [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
    except ValueError as error:
        if text.lstrip().startswith("["):
            raise UnreadableSource(f"{path} is cut off or no JSON: {error}") from None
    if not any(isinstance(row, dict) for row in rows):
        for line in text.splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                continue  # cut off, or words between
    # A cell of orch, verl's own file and others have their metrics one level down.
    objects = [{**row, **_nested(row)} for row in rows if isinstance(row, dict)]
    if not objects:
        raise UnreadableSource(f"{path} has no row and no object with metrics; export it again")
    if charted := _charted(objects):
        yield from (LoggedRun(name, _history(rows, path)) for name, rows in charted.items())
        return
    owner = path.parents[path.parent.name.startswith("checkpoint-")]
    yield LoggedRun(
        owner.name if path.name == TRAINER_STATE else path.stem,
        _history(objects, path),
        counted=not any(name in objects[0] for name in _OF_STEP),
    )


_OF_CHART = re.compile(r"(?:[^:]+: )?(.+) - (\S+?)(?<!__MIN)(?<!__MAX)")


def _charted(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each run of a chart that W&B exported: `RUN - METRIC`, beside its least
    and largest value; none of another history."""
    charted: dict[str, list[dict[str, Any]]] = {}
    for name in rows[0]:
        column = _OF_CHART.fullmatch(name)
        if column and f"{name}__MIN" in rows[0]:
            own = charted.setdefault(column[1], [{"Step": row.get("Step")} for row in rows])
            for mine, row in zip(own, rows, strict=True):
                mine[column[2]] = row[name]
    return charted


def _nested(row: dict[str, Any]) -> dict[str, Any]:
    inner = (row.get(name) for name in ("values", "data", "metrics"))
    return next((each for each in inner if isinstance(each, dict)), {})


def _history(rows: list[dict[str, Any]], path: Path) -> list[LoggedRow]:
    step = next((name for name in _OF_STEP if name in rows[0]), None)
    logged = []
    for number, row in enumerate(rows):
        values = numbers(row, (*_OF_STEP, *_OF_TIME, "_runtime", "_wandb", "", "Unnamed: 0"))
        at = numbers({"step": row.get(step)}).get("step", -1.0) if step else float(number)
        if values and at >= 0:
            logged.append(LoggedRow(int(at), values))
    if not logged:
        raise UnreadableSource(f"{path} has no row with a step and a number in it")
    return logged


# ---------------------------------------------------------------- a console


_OF_CONSOLE = ("", ".log", ".txt", ".out", ".md", ".ipynb")
_OF_TABLE = ((r"</t[dh]>\s*<t[dh][^>]*>", "\t"), (r"</tr>", "\n"), (r"</?t[a-z]+[^>]*>", ""))
"""Marks of a table in HTML, and what stands for them in a text."""


def _outputs(notebook: str) -> str:
    """Return what the cells of a notebook printed, with a tab between the cells of a table."""
    cells = json.loads(notebook).get("cells", ())
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    text = "\n".join(
        "".join(o.get("text", o.get("data", {}).get("text/html", ""))) for o in outputs
    )
    for mark, sign in _OF_TABLE:
        text = re.sub(mark, sign, text)
    return text


def read_console(path: Path) -> Iterator[LoggedRun]:
    """Yield the run whose console a text file or a notebook holds. Raise UnreadableSource if it has
    no step."""
    text = path.read_text(encoding="utf-8", errors="replace")
    text = _outputs(text) if path.suffix == ".ipynb" else text
    for table in map(plugins.logged_metrics, plugins.logging()):
        steps = list(table.console(text)) if table is not None and table.console else []
        if steps:
            rows = [LoggedRow(n if s is None else s, v) for n, (s, v) in enumerate(steps, 1)]
            counted = any(step is None for step, _ in steps)
            yield LoggedRun(path.stem, rows, counted=counted)
            return
    if own := _own_console(text):
        yield LoggedRun(path.stem, own, counted=[each.step for each in own] == [*range(len(own))])
        return
    raise UnreadableSource(
        f"{path} is in no format that orch knows: it has no line with the metrics of a step; "
        f"orch reads {FORMATS}"
    )


_PAIR = re.compile(
    r"([A-Za-z][\w /]*?)\s*[:=]\s*(-?(?:\d+\.?\d*(?:e[-+]?\d+)?|nan|inf))\b(?![:\w])", re.I
)
_STEP = re.compile(r"\(?\b(\d+)/\d+\b|\b(?:step|iteration|update)\W{0,3}(\d+)", re.IGNORECASE)
FEWEST_LINES = 10
"""Lines with the same names that make a text the console of a program of one's own."""


def _own_console(text: str) -> list[LoggedRow]:
    """Return the rows of the commonest kind of line with a reward and other `name: number`; none of
    a text that has few of them. The step is what `step 12` and `12/500` say, else the number."""
    kinds: dict[tuple[str, ...], list[LoggedRow]] = {}
    for line in text.splitlines():
        pairs = {re.sub(r"\W+", "_", name).lower(): value for name, value in _PAIR.findall(line)}
        if len(pairs) > 1 and any("reward" in name for name in pairs):
            rows = kinds.setdefault(tuple(pairs), [])
            told = [a or b for a, b in _STEP.findall(line)]
            rows.append(LoggedRow(int(told[-1]) if told else len(rows), numbers(pairs)))
    most = max(kinds.values(), key=len, default=[])
    return most if len(most) >= FEWEST_LINES else []


# ---------------------------------------------------------------- TensorBoard


EVENTS = "events.out.tfevents.*"


def event_files(path: Path) -> list[Path]:
    """Return the event files at a path: itself, in the folder, or in folders below it."""
    return [path] if path.is_file() else sorted(path.rglob(EVENTS))


def read_tensorboard(path: Path) -> Iterator[LoggedRun]:
    """Yield a run for each folder with event files: several files of one folder are one run."""
    folders: dict[Path, list[Path]] = {}
    for file in event_files(path):
        folders.setdefault(file.parent, []).append(file)
    for folder, files in folders.items():
        rows: dict[int, dict[str, float]] = {}
        for file in files:
            for each in scalars(file):
                rows.setdefault(each.step, {})[each.tag] = each.value
        name = path.name if folder in (path, path.parent) else str(folder.relative_to(path))
        if rows:
            yield LoggedRun(name, [LoggedRow(*row) for row in sorted(rows.items())])


# ---------------------------------------------------------------- Transformers


TRAINER_STATE = "trainer_state.json"


def newest_state(folder: Path) -> Path | None:
    """Return the file of a folder: its own, or that of its checkpoint with the most steps."""
    if (folder / TRAINER_STATE).is_file():
        return folder / TRAINER_STATE
    states = [
        path for path in folder.glob(f"checkpoint-*/{TRAINER_STATE}") if _checkpoint_step(path) >= 0
    ]
    return max(states, key=_checkpoint_step, default=None)


def _checkpoint_step(path: Path) -> int:
    number = path.parent.name.removeprefix("checkpoint-")
    return int(number) if number.isdigit() else -1
