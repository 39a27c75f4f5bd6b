"""Find SkyRL's exports: Hugging Face directories, ready for evaluation.

    checkpoints/exports-x<m>/global_step_<n>/policy   after n rollout batches of m train steps each
    checkpoints/state                                 the state from which SkyRL resumes

With `lora` an export is the adapter and the model's config; evaluation reads both merged.

A step of SkyRL is a rollout batch. The folder's name has the train steps of a batch, so that a
reader needs no other file.
"""

import contextlib
import os
import re
from pathlib import Path

from orchestrator.library import lora
from orchestrator.library.checkpoints import TEXTS, is_complete
from orchestrator.records import Checkpoint

_STEP = "global_step_"
_UPDATES = re.compile(r".*-x(\d+)")


def exports_of(checkpoints_dir: Path, updates: int) -> Path:
    """Return the folder of exports of a launch with `updates` train steps for each batch."""
    return checkpoints_dir / f"exports-x{updates}"


def state_of(checkpoints_dir: Path) -> Path:
    """Return the folder of the state from which SkyRL resumes."""
    return checkpoints_dir / "state"


def updates_of(folder: Path) -> int | None:
    """Return the train steps of a SkyRL step in a folder's name, or None for another name."""
    match = _UPDATES.fullmatch(folder.name)
    return int(match[1]) if match else None


def find_checkpoints(checkpoints_dir: Path) -> list[Checkpoint]:
    """Return the complete exports, oldest first, by train steps."""
    exports = _exports(checkpoints_dir)
    adapters = (each for each in exports if _is_adapter(each.path))
    return sorted(
        [
            each
            for each in exports
            if not (each.path / lora.CONFIG).exists() and is_complete(each.path)
        ]
        + [each._replace(needs_export=True) for each in adapters]
    )


def _is_adapter(export: Path) -> bool:
    return lora.is_adapter(export) and all((export / name).is_file() for name in TEXTS)


def export_command(checkpoint: Checkpoint, target: Path) -> tuple[str, ...]:
    """Return the argv that merges an adapter with its model."""
    return lora.merge_command(checkpoint.path, checkpoint.path.parents[2], target, precision="fp32")


def begun_checkpoints(checkpoints_dir: Path) -> list[Path]:
    """Return all exports, complete or not. SkyRL's resume state is no export."""
    return [each.path for each in sorted(_exports(checkpoints_dir))]


def _exports(checkpoints_dir: Path) -> list[Checkpoint]:
    exported = []
    with contextlib.suppress(FileNotFoundError):
        for exports in os.scandir(checkpoints_dir):
            updates = updates_of(Path(exports))
            if updates and exports.name.startswith("exports-"):
                steps = _steps(Path(exports))
                exported += [Checkpoint(step * updates, path) for step, path in steps]
    return exported


def _steps(exports: Path) -> list[tuple[int, Path]]:
    names = [(entry.name.removeprefix(_STEP), Path(entry)) for entry in os.scandir(exports)]
    return [(int(step), path / "policy") for step, path in names if step.isdecimal()]
