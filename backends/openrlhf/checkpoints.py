"""Find the policies that a run saved as Hugging Face directories.

checkpoints/global_step-x<m>/global_step<n>_hf    after n rollout batches of m train steps each
checkpoints/step-<t>                              the last one, written when training ends
checkpoints/global_step-x<m>/_actor               DeepSpeed's state, for resuming; the library keeps
                                                  two of these, and never deletes the others
"""

from collections.abc import Iterator
from pathlib import Path

from orchestrator.library.checkpoints import is_complete, numbered
from orchestrator.records import Checkpoint

STEPS_DIR = "global_step-x"
"""With a number: a folder whose `global_step<n>` are n rollout batches of so many train steps."""
FINAL_DIR = "step-"


def find_checkpoints(checkpoints_dir: Path) -> list[Checkpoint]:
    """Return the complete checkpoints, oldest first.

    If two have the same step, return the one at the end of the run.
    """
    complete = {step: path for step, path in _saved(checkpoints_dir) if is_complete(path)}
    return [Checkpoint(step, complete[step]) for step in sorted(complete)]


def begun_checkpoints(checkpoints_dir: Path) -> list[Path]:
    """Return the Hugging Face directories, complete or not.

    If two have the same step, return the one at the end of the run.
    """
    return list(dict(_saved(checkpoints_dir)).values())


def _saved(root: Path) -> Iterator[tuple[int, Path]]:
    for steps, folder in numbered(root, STEPS_DIR):
        for batches, saved in numbered(folder, "global_step", "_hf"):
            yield batches * steps, saved
    yield from numbered(root, FINAL_DIR)
