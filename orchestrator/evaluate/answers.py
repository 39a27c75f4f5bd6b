"""Shares of right answers of single items, read back for intervals over items.

A line of an items file ends with the metrics of its item; only that end is parsed, because the
responses before it can be megabytes.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.types import Record, Score

_MARK = b'"metrics": '


class Answers(NamedTuple):
    """Cell id -> task -> share of right answers of each item, [items]; and what was not read."""

    items: dict[str, dict[str, Any]]
    left_out: int
    """Bytes of files that were not read."""


def answers(records: Sequence[Record], scores: Iterable[Score], max_bytes: int) -> Answers:
    """Of the last evaluation of each task, averaged over evaluation seeds.

    Files that are missing, cut or of different items are left out: their scores stand without an
    interval over items. No more than `max_bytes` are read.
    """
    import numpy as np

    found: dict[str, dict[str, Any]] = {}
    left = max_bytes
    left_out = 0
    for (cell_id, task), paths in _paths(records, scores).items():
        size = sum(path.stat().st_size for path in paths)
        if size > left:
            left_out += size
            continue
        left -= size
        columns = [column for path in paths if (column := _column(path))]
        if len(columns) == len(paths) and len(set(map(len, columns))) == 1:
            found.setdefault(cell_id, {})[task] = np.mean(columns, axis=0)
    return Answers(found, left_out)


def _paths(
    records: Sequence[Record], scores: Iterable[Score]
) -> dict[tuple[str, str], list[Path]]:  # fmt: skip
    """Cell and task -> items files of its last step, one an evaluation seed."""
    homes = {record.cell.id: record.directory for record in records}
    last: dict[tuple[str, str], int] = {}
    own = [s for s in scores if s.items_path and s.cell_id in homes and s.metric[:5] == "mean@"]
    for score in own:
        key = (score.cell_id, score.task)
        last[key] = max(last.get(key, 0), score.step)
    paths: dict[tuple[str, str], list[Path]] = {}
    for score in own:
        key = (score.cell_id, score.task)
        path = homes[score.cell_id] / score.items_path
        if score.step == last[key] and path.is_file() and path not in paths.setdefault(key, []):
            paths[key].append(path)
    return {key: files for key, files in paths.items() if files}


def _column(path: Path) -> list[float]:
    """Of each item, in order of its number; empty where a line cannot be read."""
    values: dict[int, float] = {}
    try:
        with path.open("rb") as lines:
            for line in lines:
                head = line[:40].partition(b",")[0].rpartition(b":")[2]
                end = line.rpartition(_MARK)[2].rstrip().removesuffix(b"}")
                values[int(head)] = float(json.loads(end)["mean@k"])
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [values[i] for i in sorted(values)]
