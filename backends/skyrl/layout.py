"""Where SkyRL writes. Its step is a rollout batch; the folder's name says how many train steps
that is (`x4`), so that what lies there can be read with nothing else at hand.
"""

import re
from pathlib import Path

_UPDATES = re.compile(r".*-x(\d+)")


def tensorboard_of(attempt_dir: Path, updates: int) -> Path:
    return attempt_dir / f"tensorboard-x{updates}"


def exports_of(checkpoints_dir: Path, updates: int) -> Path:
    """Hugging Face directories, `global_step_<n>/policy` each."""
    return checkpoints_dir / f"exports-x{updates}"


def checkpoints_of(checkpoints_dir: Path) -> Path:
    """What SkyRL resumes from."""
    return checkpoints_dir / "state"


def updates_of(folder: Path) -> int | None:
    """Train steps of one SkyRL step, by the name of a folder made above."""
    found = _UPDATES.fullmatch(folder.name)
    return int(found[1]) if found else None
