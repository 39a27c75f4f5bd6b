"""Find the policies that a run saved: checkpoints/checkpoint-<train step>.

Each is a Hugging Face directory with its tokenizer and the state to resume from. TRL saves the last
policy again in checkpoints/ itself; orch does not read that copy.
"""

from pathlib import Path

from backends.trl.launch.orch_trl import is_whole, saved
from orchestrator.records import Checkpoint


def find_checkpoints(checkpoints_dir: Path) -> list[Checkpoint]:
    """Return the complete checkpoints, oldest first."""
    return [Checkpoint(step, path) for step, path in saved(checkpoints_dir) if is_whole(path)]


def begun_checkpoints(checkpoints_dir: Path) -> list[Path]:
    """Return the folder of every checkpoint, complete or not."""
    return [path for _, path in saved(checkpoints_dir)]
