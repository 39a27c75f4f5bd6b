"""What a launch of verl holds on a GPU, by its source (workers/engine/fsdp, 0.9.1)."""

from backends.verl.translate import TOKENS_PER_GPU, split_gpus
from orchestrator.library.memory import CheckpointUse, GpuUse, longest_sequence, saves
from orchestrator.records import Cell

ENGINE_MEMORY = 0.6


def gpu_memory(cell: Cell) -> GpuUse:
    """Return what a launch holds on a GPU: fp32 weights, gradients and AdamW, sharded by FSDP.

    The trainer's state stays on the GPU while vLLM samples, unless it is offloaded. verl keeps the
    reference policy in the node's memory always (forward_only). With `lora` the weights have no
    gradients and no moments.
    """
    settings, system = cell.settings, cell.system
    trains_all = settings.lora is None
    gpus = cell.resources.num_nodes * cell.resources.gpus_per_node
    if settings.max_staleness_steps:
        split = split_gpus(cell.resources)
        gpus = split.train_nodes * split.train_gpus
    longest = longest_sequence(settings)
    tokens = system.tokens_per_gpu or max(TOKENS_PER_GPU, longest)
    if system.micro_batch:
        tokens = system.micro_batch * longest
    return GpuUse(
        gpus=gpus,
        weights=4,
        gradients=4 * trains_all,
        optimizer=8 * trains_all,
        tokens=tokens,
        checkpointing=system.gradient_checkpointing is not False,
        engine_share=system.engine_memory or ENGINE_MEMORY,
        engine_gpus=system.tensor_parallel or 1,
        together=not settings.max_staleness_steps,
        kept_while_sampling=0.0 if system.offload else 12 if trains_all else 4,
    )


def checkpoint_use(cell: Cell) -> CheckpointUse:
    """Return what checkpoints take: fp32 shards and AdamW's moments, and an export in bf16.

    With `lora` the shards have the model too, and the adapter's moments are not counted.

    verl keeps all; orch's worker removes the optimizer of all but the newest.
    """
    state = 8 if cell.settings.lora is None else 0
    policies = saves(cell.cadence, cell.settings.num_train_steps)
    return CheckpointUse(policies=policies, policy=4 + 2, states=2, state=state)
