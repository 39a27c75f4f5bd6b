"""Read `trainer_state.json`, which Transformers' Trainer writes into each checkpoint."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestrator.imports.source import LoggedRow, LoggedRun, UnreadableSource, digest_of, numbers

NAME = "trainer_state.json"
_NO_SETTINGS = (
    f"{NAME} holds no settings: beta and the rest are unknown here (the W&B, TensorBoard or MLflow "
    "log of the same run has them)"
)


def newest(folder: Path) -> Path | None:
    """Return the file of a folder: its own, or that of its checkpoint with the most steps."""
    if (folder / NAME).is_file():
        return folder / NAME
    states = [path for path in folder.glob(f"checkpoint-*/{NAME}") if _step(path) >= 0]
    return max(states, key=_step, default=None)


def _step(path: Path) -> int:
    number = path.parent.name.removeprefix("checkpoint-")
    return int(number) if number.isdigit() else -1


def read_state(path: Path) -> Iterator[LoggedRun]:
    """Yield the run of a file. Its settings are not in it, but for the few that the state holds."""
    try:
        state: Any = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        history = state["log_history"]
    except (ValueError, KeyError, TypeError):
        raise UnreadableSource(
            f"{path} is cut off, or no {NAME} of Transformers: it has no log_history"
        ) from None
    rows = [
        LoggedRow(int(row["step"]), 0.0, numbers(row, ("step",)))
        for row in history
        if isinstance(row, dict) and "step" in row
    ]
    if not rows:
        raise UnreadableSource(f"{path} has an empty log_history: nothing was logged yet")
    done, most = state.get("global_step"), state.get("max_steps")
    folder = path.parent
    owner = folder.parent if folder.name.startswith("checkpoint-") else folder
    yield LoggedRun(
        owner.name or folder.name,
        "trainer_state",
        str(path),
        digest_of([path]),
        rows,
        written_by="Transformers' Trainer",
        ended="finished" if most and done == most else "unknown",
        notes=[_NO_SETTINGS],
    )
