"""What a launch of TRL holds on a GPU, by its source and accelerate's (FSDP2)."""

from backends.trl.translate import ENGINE_MEMORY, is_sharded, rank_layout, samples_by_engine
from orchestrator.library.memory import CheckpointUse, GpuUse, longest_sequence, saves
from orchestrator.records import Cell


def gpu_memory(cell: Cell) -> GpuUse:
    """Return what a launch holds on a GPU: fp32 weights, gradients and AdamW.

    FSDP2 shards them. All of it stays while vLLM samples. Offloaded, it is in the node's memory. A
    forward pass of the reference policy gathers it in one piece (models/utils.py, prepare_fsdp), in
    bf16 and before there are gradients and activations, which take more. With `lora` the weights
    have no gradients and no moments, and are the reference policy too.

    Each process reads policy and reference whole, in fp32, before FSDP2 shards them: the trainer
    makes the reference before it prepares the policy (1.16.0, grpo_trainer.py, line 1003).
    """
    settings, system = cell.settings, cell.system
    layout = rank_layout(cell)
    sharded = is_sharded(settings, layout.processes)
    longest = longest_sequence(settings)
    trains_all = settings.lora is None
    has_reference = trains_all and settings.kl.estimator != "none" and settings.kl.beta > 0
    share = 0.0 if system.offload else 1.0
    reference = share * 4 * has_reference
    return GpuUse(
        gpus=layout.processes if sharded else 1,
        weights=share * 4,
        gradients=share * 4 * trains_all,
        optimizer=share * 8 * trains_all,
        tokens=layout.per_device * longest,
        reference=reference,
        checkpointing=system.gradient_checkpointing is not False,
        engine_share=(system.engine_memory or ENGINE_MEMORY) * samples_by_engine(cell),
        engine_gpus=system.tensor_parallel or 1,
        kept_while_sampling=share * (12 if trains_all else 4) + reference,
        node=layout.processes * 4 * (1 + has_reference) * sharded,
    )


def checkpoint_use(cell: Cell) -> CheckpointUse:
    """Return what checkpoints take: fp32 weights and AdamW's moments; sharded, the weights twice.

    TRL keeps all, and the last policy once more; orch's worker removes the states of all but the
    newest. With `lora` they are adapters, which are not counted, and what evaluation merges.
    """
    sharded = is_sharded(cell.settings, max(cell.resources.gpus_per_node, 1))
    number = saves(cell.cadence, cell.settings.num_train_steps)
    if cell.settings.lora is not None:
        return CheckpointUse(policies=number, policy=4, states=0, state=0)
    return CheckpointUse(policies=number + 1, policy=4, states=2, state=12 if sharded else 8)
