"""Find the policies that a run saved as Hugging Face directories.

checkpoints/global_step-x<m>/global_step<n>_hf    after n rollout batches of m train steps each
checkpoints/step-<t>                              the last one, written when training ends
checkpoints/global_step-x<m>/_actor               DeepSpeed's state, for resuming; the library keeps
                                                  two of these, and never deletes the others
"""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from orchestrator.library.checkpoints import is_complete
from orchestrator.records import Checkpoint

_STEPS, _BATCHES, _FINAL = (
    re.compile(r"global_step-x([0-9]+)"),
    re.compile(r"global_step([0-9]+)_hf"),
    re.compile(r"step-([0-9]+)"),
)
STEPS_DIR = "global_step-x{}"
"""Directory whose `global_step<n>` are n rollout batches of so many train steps each."""
FINAL_DIR = "step-{}"


def steps_per_batch(name: str) -> int | None:
    """Return the train steps of a library step, from the name that orch gave to the directory.

    Return None for another name.
    """
    match = _STEPS.fullmatch(name)
    return int(match[1]) if match else None


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
    for name, path in _directories(root):
        steps = steps_per_batch(name)
        for inner, saved in _directories(path) if steps else ():
            if steps and (batches := _BATCHES.fullmatch(inner)):
                yield int(batches[1]) * steps, saved
    for name, path in _directories(root):
        if final := _FINAL.fullmatch(name):
            yield int(final[1]), path


def _directories(root: Path) -> list[tuple[str, Path]]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(root) as entries:
        return sorted((entry.name, Path(entry)) for entry in entries if entry.is_dir())
    return []
