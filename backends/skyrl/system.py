"""The settings of `system` in SkyRL: its keys, and why they cannot change the mathematics.

Micro batch and checkpointing were measured (system.json) with the token mean. By its source
(backends/skyrl_train): advantages are divided by the minibatch before it is split
(utils/ppo_utils.py, apply_loss_reduction_to_advantages_minibatch), and the KL in the loss, a mean
of responses, is weighted by the micro batch's share of them; the entropy is a mean of the tokens of
each micro batch (workers/worker.py).
"""

from orchestrator.library.manifest import SystemRow, of_checkpointing, of_engine
from orchestrator.settings import Settings

ENGINE, TRAINER = "generator.inference_engine", "trainer"
OFFLOADED = tuple(f"{TRAINER}.{model}.fsdp_config.cpu_offload" for model in ("policy", "ref"))
MICRO = tuple(f"{TRAINER}.micro_{phase}_batch_size_per_gpu" for phase in ("train", "forward"))
TOKENS = f"{TRAINER}.max_tokens_per_microbatch"
_SUMS = "advantages are divided by the minibatch before it is split (ppo_utils.py)"


def _entropy(settings: Settings) -> str:
    if settings.loss.entropy_bonus:
        return "SkyRL's entropy bonus is a mean over the tokens of each micro batch"
    return ""


SYSTEM = (
    SystemRow("micro_batch", MICRO, _SUMS, "0.4.0", changes=_entropy, by_layout=True),
    SystemRow(
        "tokens_per_gpu",
        (TOKENS,),
        _SUMS,
        changes=_entropy,
        since="0.3.0",
    ),
    of_engine("engine_memory", f"{ENGINE}.gpu_memory_utilization"),
    of_engine("engine_sequences", f"{ENGINE}.max_num_seqs"),
    of_engine("tensor_parallel", f"{ENGINE}.tensor_parallel_size", by_layout=True),
    SystemRow(
        "offload", OFFLOADED, "FSDP computes the same, and AdamW's step runs on the CPU in fp32"
    ),
    of_checkpointing(f"{TRAINER}.gradient_checkpointing", "0.4.0"),
)
_PLACEMENT = "trainer.placement"
FIELDS_OF_KEYS = {
    "data.train_data": "data.path",
    f"{TRAINER}.logger": "loggers",
    f"{TRAINER}.ckpt_interval": "cadence.checkpoint_every_steps",
    f"{TRAINER}.hf_save_interval": "cadence.checkpoint_every_steps",
    f"{TRAINER}.eval_interval": "cadence.evaluate_every_steps",
    f"{ENGINE}.num_engines": "system.tensor_parallel",
    **{f"{_PLACEMENT}.{m}_num_nodes": "resources.num_nodes" for m in ("policy", "ref")},
    **{f"{_PLACEMENT}.{m}_num_gpus_per_node": "resources.gpus_per_node" for m in ("policy", "ref")},
}
