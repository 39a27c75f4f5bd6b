"""Find the policies that a run saved: checkpoints/checkpoint-<train step>.

Each is a Hugging Face directory with its tokenizer and the state to resume from. TRL saves the last
policy again in checkpoints/ itself; orch does not read that copy. With `lora` it is an adapter,
which evaluation reads merged with its model.
"""

from pathlib import Path

from backends.trl.launch.orch_trl import SHARDED_STATES, STATES, has_policy, is_whole, newest, saved
from orchestrator.library import lora
from orchestrator.records import Checkpoint


def find_checkpoints(checkpoints_dir: Path) -> list[Checkpoint]:
    """Return the complete checkpoints, oldest first.

    Those before one that a run can resume from need their policy only.
    """
    folders = saved(checkpoints_dir)
    last = max((step for step, path in folders if is_whole(path)), default=-1)
    return [
        Checkpoint(step, path, needs_export=(path / lora.CONFIG).exists())
        for step, path in folders
        if step <= last and has_policy(path)
    ]


def export_command(checkpoint: Checkpoint, target: Path) -> tuple[str, ...]:
    """Return the argv that merges an adapter with its model."""
    return lora.merge_command(checkpoint.path, checkpoint.path.parent, target, precision="fp32")


def begun_checkpoints(checkpoints_dir: Path) -> list[Path]:
    """Return the folder of every checkpoint, complete or not."""
    return [path for _, path in saved(checkpoints_dir)]


def spent_states(checkpoints_dir: Path) -> list[Path]:
    """Return the optimizer and FSDP's own weights of checkpoints before the newest whole one."""
    last = newest(checkpoints_dir)
    if last is None:
        return []
    older = [path for _, path in saved(checkpoints_dir)]
    names = {STATES[0], *SHARDED_STATES[:2]}
    files = (path / name for path in older[: older.index(last)] for name in sorted(names))
    return [file for file in files if file.exists()]
