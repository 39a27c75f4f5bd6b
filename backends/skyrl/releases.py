"""What orch knows of SkyRL's configuration, release by release, as data."""

from collections.abc import Mapping
from typing import Literal

VERSIONS = ("0.4.0", "0.3.0", "0.2.0")
"""0.4.0 is the newest; 0.3.0 the newest for Python 3.11; 0.2.0 the first whose KL in the loss has a
gradient, and the last that trains asynchronously with its plain PPO loss."""
NEWEST = VERSIONS[0]

ALGORITHM, OPTIMIZER = "trainer.algorithm", "trainer.policy.optimizer_config"
PLACEMENT, ASYNC = "trainer.placement", "trainer.fully_async"
SAMPLING, EVAL_SAMPLING = "generator.sampling_params", "generator.eval_sampling_params"
ENGINE = "generator.inference_engine"

DEFAULTS: Mapping[str, object] = {
    "data.train_data": [],
    "trainer.policy.model.path": "Qwen/Qwen2.5-1.5B-Instruct",
    "trainer.max_prompt_length": 512,
    f"{ALGORITHM}.advantage_estimator": "grpo",
    f"{ALGORITHM}.grpo_norm_by_std": True,
    f"{ALGORITHM}.loss_reduction": "token_mean",
    f"{ALGORITHM}.max_seq_len": None,
    f"{ALGORITHM}.policy_loss_type": "regular",
    f"{ALGORITHM}.eps_clip_low": 0.2,
    f"{ALGORITHM}.eps_clip_high": 0.2,
    f"{ALGORITHM}.clip_ratio_c": 3.0,
    f"{ALGORITHM}.kl_estimator_type": "k3",
    f"{ALGORITHM}.use_kl_in_reward": False,
    f"{ALGORITHM}.use_kl_loss": True,
    f"{ALGORITHM}.kl_loss_coef": 0.001,
    f"{ALGORITHM}.kl_ctrl.type": "fixed",
    "generator.n_samples_per_prompt": 5,
    f"{SAMPLING}.max_generate_length": 1024,
    f"{SAMPLING}.temperature": 1.0,
    f"{SAMPLING}.top_p": 1.0,
    "trainer.train_batch_size": 1024,
    "trainer.policy_mini_batch_size": 256,
    f"{OPTIMIZER}.lr": 1e-6,
    f"{OPTIMIZER}.weight_decay": 0.01,
    f"{OPTIMIZER}.adam_betas": [0.9, 0.999],
    f"{OPTIMIZER}.max_grad_norm": 1.0,
    f"{OPTIMIZER}.scheduler": "constant_with_warmup",
    f"{OPTIMIZER}.num_warmup_steps": 0,
    "trainer.max_training_steps": None,
    "trainer.epochs": 1,
    f"{ASYNC}.max_staleness_steps": 4,
    "trainer.seed": 42,
}
"""The keys a cell is read from -> what SkyRL takes where a launch says nothing (the same in every
release; `data.train_data`'s depends on the home directory). A test compares them with SkyRL's."""

SINCE: Mapping[str, str] = {
    "trainer.max_training_steps": "0.3.0",
    f"{ASYNC}.enabled": "0.3.0",
}
"""Keys that older releases refuse -> the first release that has them."""

FIXED: Mapping[str, object] = {
    "trainer.logger": "tensorboard",
    "trainer.resume_mode": "latest",
    "trainer.max_ckpts_to_keep": 2,
    "trainer.critic.model.path": None,
    "trainer.update_epochs_per_batch": 1,
    "trainer.eval_before_train": True,
    "trainer.dump_eval_results": False,
    f"{ALGORITHM}.kl_ctrl.type": "fixed",
    f"{ALGORITHM}.use_entropy_loss": False,
    f"{ALGORITHM}.advantage_batch_normalize": False,
    f"{ALGORITHM}.zero_variance_filter": False,
    f"{ALGORITHM}.dynamic_sampling.type": None,
    f"{ALGORITHM}.off_policy_correction.tis_ratio_type": None,
    "generator.batched": False,
    "generator.max_turns": 1,
    "generator.zero_reward_on_non_stop": False,
    "generator.apply_overlong_filtering": False,
    "generator.eval_n_samples_per_prompt": 1,
    f"{SAMPLING}.top_k": -1,
    f"{SAMPLING}.min_p": 0.0,
    f"{SAMPLING}.logprobs": 1,
}
"""Said in every launch, whatever the cell: not left to a default that a release may move."""

CHOICES: Mapping[str, tuple[str, ...]] = {
    f"{ALGORITHM}.kl_estimator_type": ("k1", "k2", "k3", "abs"),
    f"{OPTIMIZER}.scheduler": ("constant_with_warmup", "constant", "linear", "cosine"),
}
"""What SkyRL takes from a key it does not check: a wrong value dies in a worker, hours later."""

ESTIMATORS = ("k1", "k2", "k3", "abs")
AGGREGATIONS: Mapping[str, str] = {
    "token_mean": "token_mean",
    "sequence_mean": "sequence_mean",
    "constant": "seq_mean_token_sum_norm",
}
ADVANTAGES: Mapping[str, tuple[str, bool]] = {
    "rloo": ("rloo", True),
    "grpo": ("grpo", True),
    "dr_grpo": ("grpo", False),
    "reinforce": ("orch_reinforce", True),
}
"""Ours -> advantage_estimator and grpo_norm_by_std (which only grpo reads)."""
SCHEDULES: Mapping[str, str] = {
    "constant": "constant_with_warmup",
    "linear": "linear",
    "cosine": "cosine",
}

Loss = Literal["regular", "dual_clip", "orch_rollout_ppo", "orch_rollout_dual_clip"]
NO_CLIP = (1.0, 1e9)
"""eps_clip_low and eps_clip_high of no clip: SkyRL bounds the ratio by e^20 < 1e9 before it."""


def before(version: str, other: str) -> bool:
    """Whether a release came before another."""
    return _numbers(version) < _numbers(other)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
