"""What a launch of OpenRLHF holds on a GPU, by its source and DeepSpeed's (ZeRO-3, bf16)."""

from backends.openrlhf.manifest import MANIFEST
from backends.openrlhf.translate import rank_layout
from orchestrator.library.memory import CheckpointUse, GpuUse, longest_sequence, saves
from orchestrator.records import Cell


def gpu_memory(cell: Cell) -> GpuUse:
    """Return what a launch holds on a GPU: bf16 weights and gradients, fp32 weights and AdamW.

    DeepSpeed's states sleep while vLLM samples on the same GPUs (ds.enable_sleep); the reference
    policy, bf16, does not. Offloaded, AdamW and the reference policy are in the node's memory.
    """
    settings, system = cell.settings, cell.system
    layout = rank_layout(cell, MANIFEST.version_of(settings))
    longest = longest_sequence(settings)
    synchronous = settings.max_staleness_steps == 0
    reference = 0.0 if settings.kl.estimator == "none" or system.offload else 2.0
    return GpuUse(
        gpus=layout.num_nodes * layout.gpus_per_node,
        weights=2,
        gradients=2,
        optimizer=0 if system.offload else 12,
        tokens=system.tokens_per_gpu or layout.micro_train * longest,
        reference=reference,
        checkpointing=system.gradient_checkpointing is not False,
        engine_share=system.engine_memory or (0.6 if synchronous else 0.9),
        engine_gpus=layout.gpus_of_engine,
        together=synchronous,
        kept_while_sampling=reference,
    )


def checkpoint_use(cell: Cell) -> CheckpointUse:
    """Return what checkpoints take: bf16 policies, and two states of DeepSpeed (ckpt.max_num)."""
    number = saves(cell.cadence, cell.settings.num_train_steps)
    return CheckpointUse(policies=number, policy=2, states=2, state=2 + 12)
