"""What a launch of Prime-RL holds on a GPU that trains, by its source (trainer/model.py)."""

from backends.prime_rl.config import trainer_gpus
from backends.prime_rl.manifest import MANIFEST
from orchestrator.library.memory import CheckpointUse, GpuUse, longest_sequence, saves
from orchestrator.records import Cell

ENGINE_MEMORY = 0.9
"""vLLM's default."""


def gpu_memory(cell: Cell) -> GpuUse:
    """Return what a launch holds on a GPU that trains: fp32 weights, gradients and AdamW (FSDP2).

    vLLM and the reference policy have GPUs of their own. Offloaded, AdamW's moments wait in the
    node's memory, and are copied back before the optimizer's step. With `lora` the weights have no
    gradients and no moments.
    """
    settings, system = cell.settings, cell.system
    trains_all = settings.lora is None
    longest = longest_sequence(settings)
    return GpuUse(
        gpus=trainer_gpus(cell, MANIFEST.version_of(settings)),
        weights=4,
        gradients=4 * trains_all,
        optimizer=8 * trains_all,
        tokens=longest,
        checkpointing=system.gradient_checkpointing is not False,
        engine_share=system.engine_memory or ENGINE_MEMORY,
        engine_gpus=system.tensor_parallel or 1,
        together=False,
    )


def checkpoint_use(cell: Cell) -> CheckpointUse:
    """Return what checkpoints take: bf16 policies, and fp32 states of the trainer; all stay."""
    number = saves(cell.cadence, cell.settings.num_train_steps)
    state = 12 if cell.settings.lora is None else 4
    return CheckpointUse(policies=number, policy=2, states=number, state=state)
