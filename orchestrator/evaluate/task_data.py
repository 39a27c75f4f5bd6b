"""The items of a task: from the Hugging Face hub, or from files of this machine.

`ORCH_EVAL_DATA` names a folder with local copies, for nodes without a network. The data of a task
are the files `<task>.parquet`, `.jsonl` or `.csv` in it, or all such files in `<task>/`. Files
named after splits are joined in the task's order of splits. They have the columns of the data set
they are copies of.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from orchestrator.errors import EnvironmentFault

VARIABLE = "ORCH_EVAL_DATA"
READERS = {".parquet": "parquet", ".jsonl": "json", ".csv": "csv"}


def keep(responses: list[list[str]], _items: object) -> list[list[str]]:
    """Return every response: the filter of a task that scores all k."""
    return responses


class Items(list[dict[str, Any]]):
    """The items of a split in the form that lm-eval needs: a sequence with named features."""

    features: ClassVar[dict[str, type]] = {"prompt": str, "target": str}


def folder() -> Path | None:
    """Return the folder of local data; None if none is named.

    Raise EnvironmentFault if it does not exist.
    """
    named = os.environ.get(VARIABLE)
    if not named:
        return None
    path = Path(named)
    if not path.is_dir():
        raise EnvironmentFault(
            f"{VARIABLE} names {path}, which is no folder; unset it to load from the hub"
        )
    return path


def rows(
    task: str, hub: str, splits: Sequence[str], columns: Sequence[str], config: str | None = None
) -> list[dict[str, Any]]:
    """Return all rows of the splits, in order.

    Raise EnvironmentFault, with what to do, if they are not available or lack a column.
    """
    import datasets

    root = folder()
    where = f"{hub}{f' ({config})' if config else ''}"
    files = _files(root, task, splits) if root else []
    if root and not files:
        raise EnvironmentFault(
            f"{VARIABLE} is {root}, which has no data for task {task}: put {task}.parquet, .jsonl "
            f"or .csv (or a folder {task}/ of them) there, a copy of {where}"
        )
    try:
        if files:
            parts = [
                datasets.load_dataset(
                    READERS[path.suffix],
                    data_files={"rows": [str(path)]},
                    split="rows",
                    keep_in_memory=True,
                )
                for path in files
            ]
        else:
            parts = [datasets.load_dataset(hub, config, split=split) for split in splits]
    except Exception as error:  # no network, no cache, a bad file: not of one kind
        raise EnvironmentFault(
            f"task {task} needs the data set {where}, which cannot be read"
            f"{f' from {files[0].parent}' if files else ''}: {' '.join(str(error).split())[:200]}. "
            f"Load it once where there is a network, or put a copy into a folder that {VARIABLE} "
            "names"
        ) from error
    read_rows = [row for part in parts for row in part.to_list()]
    found = ", ".join(read_rows[0]) if read_rows else "no rows"
    if not read_rows or not set(columns) <= read_rows[0].keys():
        raise EnvironmentFault(
            f"task {task} needs the columns {', '.join(columns)} of {where}; it has {found}"
        )
    return read_rows


def _files(root: Path, task: str, splits: Sequence[str]) -> list[Path]:
    """Return the files of a task: those named after splits in their order."""
    candidates = [root / f"{task}{suffix}" for suffix in READERS] + [*(root / task).glob("*")]
    order = {split: place for place, split in enumerate(splits)}

    def place(path: Path) -> tuple[int, str]:
        named = [order[split] for split in splits if path.name.startswith(split)]
        return min(named, default=len(splits)), path.name

    files = (path for path in candidates if path.suffix in READERS and path.is_file())
    return sorted(files, key=place)
