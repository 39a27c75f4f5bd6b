"""Every flag we give, by its dotted name (>= 0.10.2) and its flat one (up to 0.10.1.post2).

Read from the argparse blocks of the two releases' `openrlhf.cli.train_ppo_ray`. There is no alias
between the two: each release refuses the other's names. The library accepts any prefix of a name;
we write and read whole names only.
"""

from collections.abc import Mapping
from functools import cache
from typing import Literal, NamedTuple

NEWEST, FLAT = "0.11.2", "0.10.1.post2"
VERSIONS = (NEWEST, FLAT)
MODULE = "openrlhf.cli.train_ppo_ray"

Value = bool | int | float | str | tuple[float, float]
Options = dict[str, Value]
"""Dotted name -> value, in the order given; a switch is True."""


class Flag(NamedTuple):
    flat: str | None
    """Its name up to 0.10.1.post2; None: that release has no such flag."""
    kind: Literal["switch", "int", "float", "text", "pair"]
    default: Value | None = None
    """What the library takes where the flag is not given."""


FLAGS: Mapping[str, Flag] = {
    "actor.model_name_or_path": Flag("pretrain", "text"),
    "data.prompt_dataset": Flag("prompt_data", "text"),
    "data.input_key": Flag("input_key", "text", "input"),
    "data.label_key": Flag("label_key", "text"),
    "data.apply_chat_template": Flag("apply_chat_template", "switch", False),
    "data.max_samples": Flag("max_samples", "int", 100_000_000),
    "data.max_len": Flag("max_len", "int", 2048),
    "reward.remote_url": Flag("remote_rm_url", "text"),
    "reward.clip_range": Flag("reward_clip_range", "pair", (-10.0, 10.0)),
    "rollout.batch_size": Flag("rollout_batch_size", "int", 1024),
    "rollout.n_samples_per_prompt": Flag("n_samples_per_prompt", "int", 1),
    "rollout.max_new_tokens": Flag("max_new_tokens", "int"),
    "rollout.temperature": Flag("temperature", "float", 1.0),
    "rollout.top_p": Flag("top_p", "float", 1.0),
    "rollout.micro_batch_size": Flag("micro_rollout_batch_size", "int", 1),
    "algo.advantage.estimator": Flag("advantage_estimator", "text", "gae"),
    "algo.kl.init_coef": Flag("init_kl_coef", "float", 0.01),
    "algo.kl.estimator": Flag("kl_estimator", "text", "k1"),
    "algo.kl.use_loss": Flag("use_kl_loss", "switch", False),
    "algo.kl.unbiased_gradient": Flag(None, "switch", False),
    "actor.loss_agg_mode": Flag(None, "text", "token-mean"),
    "actor.eps_clip_low_high": Flag("eps_clip_low_high", "pair", (0.2, 0.2)),
    "actor.dual_clip": Flag("dual_clip", "float"),
    "actor.entropy_coef": Flag("entropy_loss_coef", "float"),
    "actor.adam.lr": Flag("actor_learning_rate", "float", 1e-6),
    "actor.adam.betas": Flag("adam_betas", "pair", (0.9, 0.95)),
    "actor.adam.eps": Flag(None, "float", 1e-8),
    "actor.adam.weight_decay": Flag("l2", "float", 0.0),
    "actor.max_norm": Flag("max_norm", "float", 1.0),
    "actor.lr_scheduler": Flag("lr_scheduler", "text", "cosine_with_min_lr"),
    "actor.lr_warmup_ratio": Flag("lr_warmup_ratio", "float", 0.03),
    "actor.gradient_checkpointing_enable": Flag("gradient_checkpointing", "switch", False),
    "train.batch_size": Flag("train_batch_size", "int", 128),
    "train.micro_batch_size": Flag("micro_train_batch_size", "int", 1),
    "train.num_episodes": Flag("num_episodes", "int", 1),
    "train.max_epochs": Flag("max_epochs", "int", 1),
    "train.seed": Flag("seed", "int", 42),
    "train.async_enable": Flag("async_train", "switch", False),
    "train.async_queue_size": Flag("async_queue_size", "int", 1),
    "train.colocate_all": Flag("colocate_all_models", "switch", False),
    "train.colocate_actor_ref": Flag("colocate_actor_ref", "switch", False),
    "actor.num_nodes": Flag("actor_num_nodes", "int", 1),
    "actor.num_gpus_per_node": Flag("actor_num_gpus_per_node", "int", 8),
    "ref.num_nodes": Flag("ref_num_nodes", "int", 1),
    "ref.num_gpus_per_node": Flag("ref_num_gpus_per_node", "int", 8),
    "vllm.num_engines": Flag("vllm_num_engines", "int"),
    "vllm.tensor_parallel_size": Flag("vllm_tensor_parallel_size", "int", 1),
    "vllm.gpu_memory_utilization": Flag("vllm_gpu_memory_utilization", "float", 0.95),
    "vllm.enable_sleep": Flag("vllm_enable_sleep", "switch", False),
    "ds.enable_sleep": Flag("deepspeed_enable_sleep", "switch", False),
    "ds.zero_stage": Flag("zero_stage", "int", 2),
    "ds.param_dtype": Flag("param_dtype", "text", "bf16"),
    "ds.packing_samples": Flag("packing_samples", "switch", False),
    "ckpt.path": Flag("ckpt_path", "text", "./ckpt/checkpoints_ppo_ray"),
    "ckpt.output_dir": Flag("save_path", "text", "./ckpt"),
    "ckpt.save_steps": Flag("save_steps", "int", -1),
    "ckpt.save_hf": Flag("save_hf_ckpt", "switch", False),
    "ckpt.max_num": Flag("max_ckpt_num", "int", 3),
    "ckpt.load_enable": Flag("load_checkpoint", "switch", False),
    "logger.tensorboard_dir": Flag("use_tensorboard", "text"),
    "logger.wandb.run_name": Flag("wandb_run_name", "text"),
}


@cache
def spelled(name: str, version: str) -> str | None:
    """`--name` as that release has it, or None if it has none."""
    flat = FLAGS[name].flat
    if version != FLAT:
        return f"--{name}"
    return None if flat is None else f"--{flat}"


@cache
def spellings(version: str) -> Mapping[str, str]:
    """`--name` of that release -> dotted name."""
    return {flag: name for name in FLAGS if (flag := spelled(name, version)) is not None}


def words(value: Value) -> tuple[str, ...]:
    """A value as command-line words; a switch has none. Floats keep every digit."""
    if value is True:
        return ()
    return tuple(map(str, value)) if isinstance(value, tuple) else (str(value),)


def argv(options: Options, version: str) -> tuple[str, ...]:
    """The command line of that release. Raises KeyError for a flag it lacks: a bug of ours."""
    line = ["python3", "-m", MODULE]
    for name, value in options.items():
        flag = spelled(name, version)
        if flag is None:
            raise KeyError(f"OpenRLHF {version} has no {name}")
        line += [flag, *words(value)]
    return tuple(line)
