"""The settings of `system` in Prime-RL: its keys, and why they cannot change the mathematics.

The trainer packs sequences into micro batches of `seq_len` tokens, which is the longest sequence of
the cell: a micro batch has no setting.
"""

from orchestrator.library.manifest import ABSENT, SystemRow, of_engine

OFFLOAD, CHECKPOINTING = "trainer.model.optim_cpu_offload", "trainer.model.ac.freq"
MEMORY = "inference.gpu_memory_utilization"

SYSTEM = (
    of_engine("engine_memory", MEMORY),
    of_engine("tensor_parallel", "inference.parallel.tp", by_layout=True),
    SystemRow(
        "offload",
        (OFFLOAD,),
        "the optimizer's state is copied back before its step (trainer/optim.py)",
    ),
    SystemRow(
        "gradient_checkpointing",
        (CHECKPOINTING,),
        "activations are computed again, by the same operations (trainer/model.py)",
        send=lambda value, _: {CHECKPOINTING: 1 if value else ABSENT},
    ),
)
FIELDS_OF_KEYS = {
    "ckpt.interval": "cadence.checkpoint_every_steps",
    "orchestrator.eval.interval": "cadence.evaluate_every_steps",
    "deployment.gpus_per_node": "resources.gpus_per_node",
    "deployment.num_train_gpus": "resources.gpus_per_node",
    "deployment.num_infer_gpus": "resources.gpus_per_node",
    "inference.parallel.dp": "system.tensor_parallel",
}
