"""The settings of `system` in verl: its keys, and why they cannot change the mathematics.

Micro batch and checkpointing were measured (system.json) with the token mean; the divisors of every
loss_agg_mode are of the global minibatch (trainer/ppo/core_algos.py, agg_loss).
"""

from orchestrator.library.manifest import ABSENT, SystemRow, Values, of_checkpointing, of_engine
from orchestrator.settings import Settings

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
REFERENCE, MODEL = "actor_rollout_ref.ref", "actor_rollout_ref.model"
DYNAMIC, TOKENS = f"{ACTOR}.use_dynamic_bsz", f"{ACTOR}.ppo_max_token_len_per_gpu"
MICRO = (
    f"{ACTOR}.ppo_micro_batch_size_per_gpu",
    f"{REFERENCE}.log_prob_micro_batch_size_per_gpu",
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",
)
OFFLOADED = (
    f"{ACTOR}.fsdp_config.param_offload",
    f"{ACTOR}.fsdp_config.optimizer_offload",
    f"{REFERENCE}.fsdp_config.param_offload",
)
_SUMS = "each loss is a sum of tokens over the divisor of the whole minibatch (agg_loss)"


def _micro(value: int, _: Settings) -> Values:
    return {**dict.fromkeys(MICRO, value), DYNAMIC: False, TOKENS: ABSENT}


SYSTEM = (
    SystemRow("micro_batch", (*MICRO, DYNAMIC), _SUMS, "0.9.1", send=_micro),
    SystemRow("tokens_per_gpu", (TOKENS,), _SUMS),
    of_engine("engine_memory", f"{ROLLOUT}.gpu_memory_utilization"),
    of_engine("engine_sequences", f"{ROLLOUT}.max_num_seqs"),
    of_engine("tensor_parallel", f"{ROLLOUT}.tensor_model_parallel_size"),
    SystemRow(
        "offload",
        OFFLOADED,
        "weights and optimizer are copied back before each use (workers/engine/fsdp)",
    ),
    of_checkpointing(f"{MODEL}.enable_gradient_checkpointing", "0.9.1"),
)
FIELDS_OF_KEYS = {
    "data.train_files": "data.path",
    f"{ROLLOUT}.nnodes": "resources.num_nodes",
    f"{ROLLOUT}.n_gpus_per_node": "resources.gpus_per_node",
    "trainer.nnodes": "resources.num_nodes",
    "trainer.n_gpus_per_node": "resources.gpus_per_node",
    "trainer.logger": "loggers",
    "trainer.save_freq": "cadence.checkpoint_every_steps",
    "trainer.test_freq": "cadence.evaluate_every_steps",
}
