"""What a launch of SkyRL holds on a GPU, by its source (backends/skyrl_train/workers/fsdp)."""

from backends.skyrl.translate import MOST_TOKENS, gpu_layout
from orchestrator.library.manifest import rollouts_each
from orchestrator.library.memory import CheckpointUse, GpuUse, longest_sequence, micro_batch, saves
from orchestrator.records import Cell

ENGINE_MEMORY = 0.8
"""SkyRL's default."""


def gpu_memory(cell: Cell) -> GpuUse:
    """Return what a launch holds on a GPU: fp32 weights, gradients and AdamW, sharded by FSDP.

    The reference policy is bf16. Both are moved to the node's memory while vLLM samples on the
    same GPUs. Offloaded, both are there always. With `lora` the weights have no gradients and no
    moments.
    """
    settings, system = cell.settings, cell.system
    layout = gpu_layout(cell)
    longest = longest_sequence(settings)
    sequences = rollouts_each(cell, layout.ranks)
    tokens = (system.micro_batch or micro_batch(sequences, longest, MOST_TOKENS)) * longest
    share = 0.0 if system.offload else 1.0
    trains_all = settings.lora is None
    return GpuUse(
        gpus=layout.ranks,
        weights=share * 4,
        gradients=share * 4 * trains_all,
        optimizer=share * 8 * trains_all,
        tokens=system.tokens_per_gpu or tokens,
        reference=0.0 if settings.kl.estimator == "none" else share * 2,
        checkpointing=system.gradient_checkpointing is not False,
        engine_share=system.engine_memory or ENGINE_MEMORY,
        engine_gpus=layout.gpus_of_engine,
        together=layout.colocated,
    )


def checkpoint_use(cell: Cell) -> CheckpointUse:
    """Return what checkpoints take: fp32 exports, and two states (max_ckpts_to_keep).

    A release that counts no steps exports after each pass through the prompts too, which is not
    counted here. With `lora` an export is what evaluation merges, and a state has the model.
    """
    number = saves(cell.cadence, cell.settings.num_train_steps)
    state = 12 if cell.settings.lora is None else 4
    return CheckpointUse(policies=number, policy=4, states=2, state=state)
