"""The settings of `system` in TRL: its options, and why they cannot change the mathematics.

Micro batch and checkpointing were measured (system.json). The divisors of GRPOTrainer's losses that
orch sends are of the accumulated step (grpo_trainer.py, `normalizer`); its entropy bonus is a mean
of each micro batch.
"""

from orchestrator.library.manifest import SystemRow, of_checkpointing, of_engine
from orchestrator.settings import Settings


def _entropy(settings: Settings) -> str:
    if settings.loss.entropy_bonus:
        return "TRL's entropy bonus is a mean over the tokens of each micro batch"
    return ""


SYSTEM = (
    SystemRow(
        "micro_batch",
        ("per_device_train_batch_size",),
        "gradients are summed over an accumulated step, whose divisor is the step's",
        measured="1.16.0",
        changes=_entropy,
        by_layout=True,
    ),
    of_engine("engine_memory", "vllm_gpu_memory_utilization"),
    of_engine("tensor_parallel", "vllm_tensor_parallel_size"),
    SystemRow(
        "offload",
        ("OFFLOAD",),
        "--fsdp_offload_params of accelerate: shards and AdamW are in the node's memory",
        by_layout=True,
    ),
    of_checkpointing("gradient_checkpointing", "1.16.0"),
)
FIELDS_OF_KEYS = {
    "dataset_name": "data.path",
    "dataset_test_split": "data.path",
    "dataset_train_split": "data.path",
    "datasets": "data.path",
    "eval_steps": "cadence.evaluate_every_steps",
    "gradient_accumulation_steps": "batch.num_prompts",
    "report_to": "loggers",
    "save_steps": "cadence.checkpoint_every_steps",
    "use_cpu": "resources.gpus_per_node",
}
