"""Find SkyRL's exports: Hugging Face directories, ready for evaluation.

    checkpoints/exports-x<m>/global_step_<n>/policy   after n rollout batches of m train steps each
    checkpoints/state                                 the state from which SkyRL resumes

With `lora` an export is the adapter and the model's config; evaluation reads both merged.

A step of SkyRL is a rollout batch. The folder's name has the train steps of a batch, so that a
reader needs no other file.
"""

from pathlib import Path

from orchestrator.library import lora
from orchestrator.library.checkpoints import TEXTS, is_complete, numbered
from orchestrator.records import Checkpoint


def exports_of(checkpoints_dir: Path, updates: int) -> Path:
    """Return the folder of exports of a launch with `updates` train steps for each batch."""
    return checkpoints_dir / f"exports-x{updates}"


def state_of(checkpoints_dir: Path) -> Path:
    """Return the folder of the state from which SkyRL resumes."""
    return checkpoints_dir / "state"


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
    return [
        Checkpoint(step * updates, path / "policy")
        for updates, exports in numbered(checkpoints_dir, "exports-x")
        for step, path in numbered(exports, "global_step_")
    ]
