"""What Prime-RL 0.5.0 leaves in its output directory.

weights/step_<n>/STABLE            Hugging Face directory of the policy after n steps, when whole
checkpoints/step_<n>/{trainer,STABLE}   the trainer's own state, to resume from
run_default/{checkpoints,broadcasts}/step_<n>   the orchestrator's state; weights for the server
"""

from pathlib import Path

from orchestrator.types import Checkpoint


def find_checkpoints(checkpoints_dir: Path) -> list[Checkpoint]:
    """Whole policies, oldest first; one still being written has no STABLE."""
    found = []
    for path in (checkpoints_dir / "weights").glob("step_*"):
        step = path.name.removeprefix("step_")
        if step.isdecimal() and (path / "STABLE").exists() and (path / "config.json").exists():
            found.append(Checkpoint(int(step), path))
    return sorted(found)
