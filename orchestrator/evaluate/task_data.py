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
    root = folder()
    where = f"{hub}{f' ({config})' if config else ''}"
    files = _files(root, task, splits) if root else []
    if root and not files:
        raise EnvironmentFault(
            f"{VARIABLE} is {root}, which has no data for task {task}: put {task}.parquet, .jsonl "
            f"or .csv (or a folder {task}/ of them) there, a copy of {where}"
        )
    read_rows = _read(files) if files else _from_hub(task, hub, config, splits)
    lacking = [column for column in columns if read_rows and column not in read_rows[0]]
    if lacking or not read_rows:
        columns_read = ", ".join(read_rows[0]) if read_rows else "no rows"
        raise EnvironmentFault(
            f"task {task} needs the columns {', '.join(columns)} of {where}; "
            f"{files[0] if files else 'the data set'} has {columns_read}"
        )
    return read_rows


def _files(root: Path, task: str, splits: Sequence[str]) -> list[Path]:
    single = [root / f"{task}{suffix}" for suffix in READERS]
    in_folder = sorted((root / task).glob("*")) if (root / task).is_dir() else []
    files = [path for path in (*single, *in_folder) if path.suffix in READERS and path.is_file()]

    def place(path: Path) -> tuple[int, str]:
        named = [i for i, split in enumerate(splits) if path.name.startswith(split)]
        return (named[0] if named else len(splits)), path.name

    return sorted(files, key=place)


def _read(files: Sequence[Path]) -> list[dict[str, Any]]:
    import datasets

    rows: list[dict[str, Any]] = []
    for path in files:
        try:
            part = datasets.load_dataset(
                READERS[path.suffix],
                data_files={"rows": [str(path)]},
                split="rows",
                keep_in_memory=True,
            )
        except Exception as error:  # what the library raises for a bad file is not of one kind
            raise EnvironmentFault(
                f"{path} cannot be read: {' '.join(str(error).split())[:200]}"
            ) from error
        rows += part.to_list()
    return rows


def _from_hub(
    task: str, hub: str, config: str | None, splits: Sequence[str]
) -> list[dict[str, Any]]:
    import datasets

    try:
        parts = [datasets.load_dataset(hub, config, split=split) for split in splits]
    except Exception as error:  # no network, no cache, a renamed data set: not of one kind
        raise EnvironmentFault(
            f"task {task} needs the data set {hub}{f' ({config})' if config else ''}, which cannot "
            f"be loaded: {' '.join(str(error).split())[:200]}. Load it once where there is a "
            f"network, or put a copy into a folder that {VARIABLE} names"
        ) from error
    return [row for part in parts for row in part.to_list()]
