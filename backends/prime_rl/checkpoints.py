"""Find the files that Prime-RL 0.5.0 writes to its output directory.

weights/step_<n>/STABLE            Hugging Face directory of the policy after n steps, if complete
checkpoints/step_<n>/{trainer,STABLE}   the trainer's own state, to resume from
run_default/{checkpoints,broadcasts}/step_<n>   the orchestrator's state; weights for the server
"""

from pathlib import Path

from orchestrator.library import lora
from orchestrator.library.checkpoints import numbered
from orchestrator.records import Checkpoint

ADAPTERS = "lora_adapters"
"""In a policy with `lora`: the adapter. The weights beside it are the model before training."""


def find_checkpoints(checkpoints_dir: Path) -> list[Checkpoint]:
    """Return the complete policies, oldest first. A policy that is being written has no STABLE."""
    return [
        each._replace(needs_export=(each.path / ADAPTERS).exists())
        for each in _weights(checkpoints_dir)
        if _is_whole(each.path)
    ]


def export_command(checkpoint: Checkpoint, target: Path) -> tuple[str, ...]:
    """Return the argv that merges an adapter with its model."""
    adapter, home = checkpoint.path / ADAPTERS, checkpoint.path.parents[1]
    return lora.merge_command(adapter, home, target, precision="bf16", base=checkpoint.path)


def begun_checkpoints(checkpoints_dir: Path) -> list[Path]:
    """Return the folder of every policy, complete or not.

    Resume states and broadcast weights are not policies.
    """
    return [each.path for each in _weights(checkpoints_dir)]


def companions(checkpoints_dir: Path, checkpoint: Checkpoint) -> list[Path]:
    """Return the states of the trainer and the orchestrator at the step of a checkpoint."""
    step = f"step_{checkpoint.step}"
    homes = (checkpoints_dir / "checkpoints", checkpoints_dir / "run_default/checkpoints")
    return [home / step for home in homes if (home / step).is_dir()]


def _is_whole(path: Path) -> bool:
    return (path / "STABLE").exists() and (path / "config.json").exists()


def _weights(checkpoints_dir: Path) -> list[Checkpoint]:
    """Return all policies, complete or not, oldest first."""
    found = numbered(checkpoints_dir / "weights", "step_")
    return [Checkpoint(step, path) for step, path in found]
