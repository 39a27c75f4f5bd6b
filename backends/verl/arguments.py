"""What orch knows of verl's arguments, release by release, as data."""

from collections.abc import Mapping

NEWEST, OLDEST = "0.9.1", "0.8.0"
VERSIONS = (NEWEST, OLDEST)

MAIN = "verl.trainer.main_ppo"
ACTOR, ROLLOUT, OPTIMIZER = (
    "actor_rollout_ref.actor",
    "actor_rollout_ref.rollout",
    "actor_rollout_ref.actor.optim",
)
MODEL, CORRECTION = "actor_rollout_ref.model", "algorithm.rollout_correction"
REWARD, WORKER_ENV = "reward.custom_reward_function", "ray_kwargs.ray_init.runtime_env.env_vars"
SEPARATE, SAMPLER = "trainer.v1.separate_async", "trainer.v1.sampler"

_SHARED: Mapping[str, object] = {
    "actor_rollout_ref.hybrid_engine": True,
    f"{MODEL}.path": "~/models/deepseek-llm-7b-chat",
    f"{MODEL}.custom_chat_template": None,
    f"{ACTOR}.clip_ratio": 0.2,
    f"{ACTOR}.clip_ratio_c": 3.0,
    f"{ACTOR}.clip_ratio_high": 0.2,
    f"{ACTOR}.clip_ratio_low": 0.2,
    f"{ACTOR}.entropy_coeff": 0,
    f"{ACTOR}.grad_clip": 1.0,
    f"{ACTOR}.kl_loss_coef": 0.001,
    f"{ACTOR}.kl_loss_type": "low_var_kl",
    f"{ACTOR}.loss_agg_mode": "token-mean",
    f"{ACTOR}.loss_scale_factor": None,
    f"{ACTOR}.policy_loss.loss_mode": "vanilla",
    f"{ACTOR}.ppo_epochs": 1,
    f"{ACTOR}.ppo_mini_batch_size": 256,
    f"{ACTOR}.use_kl_loss": False,
    f"{OPTIMIZER}.betas": [0.9, 0.999],
    f"{OPTIMIZER}.clip_grad": 1.0,
    f"{OPTIMIZER}.lr": 1e-6,
    f"{OPTIMIZER}.lr_scheduler_type": "constant",
    f"{OPTIMIZER}.lr_warmup_steps": -1,
    f"{OPTIMIZER}.lr_warmup_steps_ratio": 0.0,
    f"{OPTIMIZER}.override_optimizer_config": None,
    f"{OPTIMIZER}.weight_decay": 0.01,
    f"{ROLLOUT}.checkpoint_engine.backend": "naive",
    f"{ROLLOUT}.n": 1,
    f"{ROLLOUT}.name": "???",
    f"{ROLLOUT}.nnodes": 0,
    f"{ROLLOUT}.temperature": 1.0,
    f"{ROLLOUT}.top_k": -1,
    f"{ROLLOUT}.top_p": 1,
    "algorithm.adv_estimator": "gae",
    "algorithm.kl_ctrl.kl_coef": 0.001,
    "algorithm.kl_ctrl.type": "fixed",
    "algorithm.kl_penalty": "kl",
    "algorithm.norm_adv_by_std_in_grpo": True,
    "algorithm.use_kl_in_reward": False,
    f"{CORRECTION}.bypass_mode": False,
    f"{CORRECTION}.rollout_is": None,
    f"{CORRECTION}.rollout_rs": None,
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
    "data.seed": None,
    "data.shuffle": True,
    "data.train_batch_size": 1024,
    "data.train_files": "~/data/rlhf/gsm8k/train.parquet",
    "trainer.logger": ["console", "wandb"],
    "trainer.project_name": "verl_examples",
    "trainer.resume_mode": "auto",
    "trainer.total_epochs": 30,
    "trainer.total_training_steps": None,
}
_ASYNCHRONOUS: Mapping[str, object] = {
    "trainer.use_v1": True,
    "trainer.v1.trainer_mode": "sync",
    f"{SEPARATE}.num_warmup_batches": 1,
    f"{SEPARATE}.parameter_sync_step": 4,
    f"{SAMPLER}.max_off_policy_strategy": "drop",
    f"{SAMPLER}.max_off_policy_threshold": 8,
}
DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "0.9.1": {**_SHARED, **_ASYNCHRONOUS},
    "0.8.0": _SHARED,
}
"""Release -> key -> what verl takes where a launch says nothing; the keys that a cell is read
from. A contract test compares them with the library's own composition."""

KL_NAMES: Mapping[str, str] = {
    **{name: name for name in ("k1", "abs", "k2", "k3")},
    "kl": "k1",
    "mse": "k2",
    "low_var_kl": "k3",
    **{name: name for name in ("k1+", "abs+", "k2+", "k3+")},
    "kl+": "k1+",
    "low_var_kl+": "k3+",
}
"""verl's name of an estimator -> orch's. (`mse+` has mse's value and gradient.)"""
WEIGHTED = ("rho_k1", "rho_k2", "sg_rho_k2", "rho_k3")
"""Estimators that only extension.py brings."""

AGGREGATIONS: Mapping[str, str] = {
    "token_mean": "token-mean",
    "sequence_mean": "seq-mean-token-mean",
    "constant": "seq-mean-token-sum-norm",
}
ADVANTAGES: Mapping[str, tuple[str, bool]] = {
    "rloo": ("rloo", True),
    "grpo": ("grpo", True),
    "dr_grpo": ("grpo", False),
    "reinforce": ("orch_reinforce", True),
}
"""Ours -> algorithm.adv_estimator and norm_adv_by_std_in_grpo (which only grpo reads)."""

LOGGERS = (
    "console",
    "file",
    "mlflow",
    "wandb",
    "tensorboard",
    "swanlab",
    "clearml",
    "trackio",
    "vemlp_wandb",
    "rl_insight",
)
ENGINES = ("vllm", "sglang", "trtllm")
STRATEGIES = ("drop", "wait")
OUTDATED_REWARD_KEYS = ("custom_reward_function.", "reward_model.")
"""The places of before 0.8: 0.8.0 moves them to `reward.*`, 0.9.1 composes and ignores them."""

OFF = 1e9
"""Stands for no bound, where verl insists on one: clipping a ratio, a gradient norm."""
PLAIN_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""A chat template that adds nothing: verl has no way to leave templates out."""
