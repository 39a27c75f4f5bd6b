"""The settings of `system` in OpenRLHF: its flags, and why they cannot change the mathematics.

Micro batch and checkpointing were measured in 0.11.2 (system.json) with the token mean. By its
source (trainer/ray/ppo_actor.py): 0.11.2 divides by the tokens of the accumulated step, over
all GPUs; 0.10.1.post2 divides each micro batch by its own tokens, so that its size is mathematics.
"""

from backends.openrlhf.flags import NEWEST, is_read
from orchestrator.library.manifest import SystemRow, of_checkpointing, of_engine
from orchestrator.settings import Settings

TOKENS = ("train.max_tokens_per_gpu", "rollout.max_tokens_per_gpu")
DYNAMIC = "train.dynamic_batch_enable"
OFFLOADED = ("ds.adam_offload", "ref.offload")
_SUMS = "0.11.2 divides by the tokens of the accumulated step, over all GPUs (ppo_actor.py)"


def _own_tokens(settings: Settings) -> str:
    version = settings.backend.version or NEWEST
    if not is_read(version) and settings.loss.aggregation == "token_mean":
        return "This release divides each micro batch (micro_train_batch_size) by its own tokens"
    return ""


def _order(settings: Settings) -> str:
    if settings.batch.num_minibatches > 1:
        return (
            "With batches of a number of tokens OpenRLHF cuts a rollout batch into minibatches "
            "without shuffling it (trainer/ray/ppo_actor.py)"
        )
    return _own_tokens(settings)


SYSTEM = (
    SystemRow(
        "micro_batch",
        ("train.micro_batch_size", "rollout.micro_batch_size"),
        _SUMS,
        measured="0.11.2",
        changes=_own_tokens,
        by_layout=True,
    ),
    SystemRow(
        "tokens_per_gpu",
        (*TOKENS, DYNAMIC),
        _SUMS,
        send=lambda value, _: {DYNAMIC: True, **dict.fromkeys(TOKENS, value)},
        changes=_order,
    ),
    of_engine("engine_memory", "vllm.gpu_memory_utilization"),
    of_engine("tensor_parallel", "vllm.tensor_parallel_size", by_layout=True),
    SystemRow(
        "offload",
        OFFLOADED,
        "AdamW's step runs on the CPU in fp32 (DeepSpeedCPUAdam), by the same rule",
    ),
    of_checkpointing("actor.gradient_checkpointing_enable", "0.11.2"),
)
FIELDS_OF_KEYS = {
    "data.prompt_dataset": "data.path",
    "ckpt.save_steps": "cadence.checkpoint_every_steps",
    "eval.steps": "cadence.evaluate_every_steps",
    "eval.dataset": "data.path",
    "vllm.num_engines": "system.tensor_parallel",
    **{f"{model}.num_nodes": "resources.num_nodes" for model in ("actor", "ref")},
    **{f"{model}.num_gpus_per_node": "resources.gpus_per_node" for model in ("actor", "ref")},
}
