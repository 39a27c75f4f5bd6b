"""Write and read the command line of `openrlhf.cli.train_ppo_ray`, with the flags of each release.

Every flag has a dotted name since 0.10.2, and had a flat name before. The two are no aliases: each
release refuses the other's names. Inside orch a flag has its dotted name. options.json holds the
facts of each release's own parser about its flags.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from orchestrator.errors import Fault, did_you_mean
from orchestrator.library import key_tables
from orchestrator.library.key_tables import (
    Option,
    Options,
    driven,
    is_since,
    load_options,
)
from orchestrator.library.manifest import ABSENT, ReleaseTable, Values

FACTS = Path(__file__).with_name("options.json")
VERSIONS = driven(FACTS)
"""The releases that orch drives, newest first."""
NEWEST = VERSIONS[0]
FIRST_DOTTED = "0.10.2"
"""The first release whose flags have dotted names."""
READ = "0.11.2"
"""The release since which orch has read what rules of this folder say, in 0.11's trainer."""


def is_flat(version: str) -> bool:
    """Return True for a release whose flags have flat names."""
    return not is_since(version, FIRST_DOTTED)


def is_read(version: str) -> bool:
    """Return True for READ and the releases after it."""
    return is_since(version, READ)


FLAT = next(version for version in VERSIONS if is_flat(version))
MODULE = "openrlhf.cli.train_ppo_ray"

MANY = " x +"
"""The end of the kind of a flag that takes one word or more."""
Value = bool | int | float | str | tuple[float, ...]

FLAT_NAMES: Mapping[str, str | None] = {
    "actor.model_name_or_path": "pretrain",
    "data.prompt_dataset": "prompt_data",
    "data.max_samples": "max_samples",
    "data.input_key": "input_key",
    "data.label_key": "label_key",
    "data.apply_chat_template": "apply_chat_template",
    "data.max_len": "max_len",
    "reward.remote_url": "remote_rm_url",
    "reward.clip_range": "reward_clip_range",
    "rollout.batch_size": "rollout_batch_size",
    "rollout.n_samples_per_prompt": "n_samples_per_prompt",
    "rollout.max_new_tokens": "max_new_tokens",
    "rollout.temperature": "temperature",
    "rollout.top_p": "top_p",
    "rollout.micro_batch_size": "micro_rollout_batch_size",
    "algo.advantage.estimator": "advantage_estimator",
    "algo.advantage.is_correction_level": "enable_vllm_is_correction",
    "algo.advantage.is_correction_mode": "vllm_is_correction_type",
    "algo.advantage.is_correction_gating": None,
    "algo.advantage.is_correction_threshold": "vllm_is_truncated_threshold",
    "algo.kl.init_coef": "init_kl_coef",
    "algo.kl.estimator": "kl_estimator",
    "algo.kl.use_loss": "use_kl_loss",
    "algo.kl.unbiased_gradient": None,
    "actor.policy_loss_type": "policy_loss_type",
    "actor.loss_agg_mode": None,
    "actor.eps_clip_low_high": "eps_clip_low_high",
    "actor.dual_clip": "dual_clip",
    "actor.entropy_coef": "entropy_loss_coef",
    "actor.adam.lr": "actor_learning_rate",
    "actor.adam.betas": "adam_betas",
    "actor.adam.eps": None,
    "actor.adam.weight_decay": "l2",
    "actor.max_norm": "max_norm",
    "actor.lr_scheduler": "lr_scheduler",
    "actor.lr_warmup_ratio": "lr_warmup_ratio",
    "train.batch_size": "train_batch_size",
    "train.micro_batch_size": "micro_train_batch_size",
    "train.num_episodes": "num_episodes",
    "train.max_epochs": "max_epochs",
    "train.seed": "seed",
    "train.async_enable": "async_train",
    "train.async_queue_size": "async_queue_size",
    "actor.num_nodes": "actor_num_nodes",
    "actor.num_gpus_per_node": "actor_num_gpus_per_node",
    "ref.num_nodes": "ref_num_nodes",
    "ref.num_gpus_per_node": "ref_num_gpus_per_node",
    "vllm.num_engines": "vllm_num_engines",
    "vllm.tensor_parallel_size": "vllm_tensor_parallel_size",
    "vllm.enable_prefix_caching": "enable_prefix_caching",
    "ds.zero_stage": "zero_stage",
    "ds.param_dtype": "param_dtype",
    "ds.packing_samples": "packing_samples",
    "actor.gradient_checkpointing_enable": "gradient_checkpointing",
    "train.colocate_all": "colocate_all_models",
    "train.colocate_actor_ref": "colocate_actor_ref",
    "vllm.enable_sleep": "vllm_enable_sleep",
    "ds.enable_sleep": "deepspeed_enable_sleep",
    "vllm.gpu_memory_utilization": "vllm_gpu_memory_utilization",
    "train.dynamic_batch_enable": "use_dynamic_batch",
    "train.max_tokens_per_gpu": "train_max_tokens_per_gpu",
    "rollout.max_tokens_per_gpu": "rollout_max_tokens_per_gpu",
    "ds.adam_offload": "adam_offload",
    "ref.offload": "ref_reward_offload",
    "eval.dataset": "eval_dataset",
    "eval.steps": "eval_steps",
    "eval.temperature": "eval_temperature",
    "eval.n_samples_per_prompt": "eval_n_samples_per_prompt",
    "ckpt.path": "ckpt_path",
    "ckpt.output_dir": "save_path",
    "ckpt.save_steps": "save_steps",
    "ckpt.save_hf": "save_hf_ckpt",
    "ckpt.max_num": "max_ckpt_num",
    "ckpt.load_enable": "load_checkpoint",
    "ckpt.best_metric_key": "best_metric_key",
    "logger.tensorboard_dir": "use_tensorboard",
    "logger.wandb.group": "wandb_group",
    "logger.wandb.key": "use_wandb",
    "logger.wandb.project": "wandb_project",
    "logger.wandb.run_name": "wandb_run_name",
}
"""The flags that orch gives, in the order of a command line: dotted name -> flat name, or None for
a flag that 0.10.1.post2 does not have."""

_SETTLED: Values = {"actor.eps_clip_low_high": (0.2, 0.2)}
"""Defaults that the script computes from other flags (eps_clip) after parsing."""


@cache
def _release_options() -> Mapping[str, Options]:
    return load_options(FACTS)


@cache
def own_tables() -> Mapping[str, ReleaseTable]:
    """Return release -> the table of its flags, under the release's own names."""
    releases = _release_options().items()
    return {version: key_tables.release_table(version, known) for version, known in releases}


@cache
def dotted_names(version: str) -> Mapping[str, str]:
    """Return the dotted name of each flag of a release that has another name there."""
    if not is_flat(version):
        return {}
    return {flat: name for name, flat in FLAT_NAMES.items() if flat is not None}


@cache
def options(version: str) -> Mapping[str, Option]:
    """Return a release's facts about the flags that orch gives, by their dotted names."""
    known = _release_options()[version]
    named = {name: flat if is_flat(version) else name for name, flat in FLAT_NAMES.items()}
    return {name: known[own] for name, own in named.items() if own is not None and own in known}


def default(name: str, version: str) -> object:
    """Return the default of a flag of a release, by the release's own name; None without one."""
    option = _release_options()[version].get(name)
    return None if option is None else option.default


@cache
def release_table(version: str) -> ReleaseTable:
    """Return the flags that a release accepts, by the dotted names of the flags that orch gives.

    Defaults are those of a launch that leaves a flag out; a switch is then False. The estimator has
    no default in the table: if a launch names none, the coefficient decides if it has one.
    """
    own = {name: option.default for name, option in options(version).items()}
    plain = {name: tuple(x) if isinstance(x, list) else x for name, x in own.items()}
    silent = {name: x for name, x in plain.items() if name != "algo.kl.estimator"}
    table = key_tables.release_table(version, options(version))
    return replace(table, defaults={**silent, **_SETTLED})


@cache
def spelled(name: str, version: str) -> str | None:
    """Return `--name` as a release spells it, or None if the release lacks the flag."""
    own = FLAT_NAMES[name] if is_flat(version) else name
    return f"--{own}" if own in _release_options()[version] else None


@cache
def spellings(version: str) -> Mapping[str, str]:
    """Return the dotted name of each `--name` of a release, for the flags that orch gives."""
    return {flag: name for name in FLAT_NAMES if (flag := spelled(name, version)) is not None}


def is_given(value: object) -> bool:
    """Return True if a flag with this value is written on the command line."""
    return value is not False and value is not None and value is not ABSENT


def words(value: object) -> tuple[str, ...]:
    """Return the words of a value on a command line; a switch has none. Floats keep every digit."""
    if value is True:
        return ()
    return tuple(map(str, value)) if isinstance(value, tuple) else (str(value),)


def argv(given: Values, version: str, extra: Values | None = None) -> tuple[str, ...]:
    """Return the command line of a release. extra: flags by the release's own names.

    Raise KeyError for a flag that the release lacks: a bug.
    """
    unknown = given.keys() - FLAT_NAMES.keys()
    if unknown:
        raise KeyError(f"OpenRLHF {version}: orch has no {', '.join(sorted(unknown))}")
    line = ["python3", "-m", MODULE]
    for name in FLAT_NAMES:
        if is_given(value := given.get(name)):
            if (flag := spelled(name, version)) is None:
                raise KeyError(f"OpenRLHF {version} has no {name}")
            line += [flag, *words(value)]
    for name, value in (extra or {}).items():
        line += [f"--{name}", *words(tuple(value) if isinstance(value, list) else value)]
    return tuple(line)


def without(argv: Sequence[str], names: Collection[str]) -> list[str]:
    """Return a command line without these flags of the release, which are written in full."""
    kept: list[str] = []
    flag = ""
    for word in argv:
        flag = word.removeprefix("--").partition("=")[0] if word.startswith("--") else flag
        kept += [] if flag in names else [word]
    return kept


class CommandLine(NamedTuple):
    """The flags of a launch by their dotted names, and their release."""

    given: Mapping[str, Value]
    version: str


def read(argv: Sequence[str], faults: list[Fault]) -> CommandLine:
    """Return the flags of a launch. Append a fault to `faults` for each flag unknown to orch."""
    rest = list(argv[list(argv).index(MODULE) + 1 :])
    version = max(VERSIONS, key=lambda v: sum(word in spellings(v) for word in rest))
    known, given = spellings(version), dict[str, Value]()
    while rest:
        flag, following = rest[0], rest[1:]
        taken = [*takewhile(lambda word: not word.startswith("--"), following)]
        rest = following[len(taken) :]
        if flag in known:
            given[known[flag]] = _value(options(version)[known[flag]].kind, taken)
        else:
            hint = did_you_mean(flag, known)
            faults.append(Fault(f"{flag} is not a flag orch knows of OpenRLHF {version}{hint}"))
    return CommandLine(given, version)


def _value(kind: str, taken: Sequence[str]) -> Value:
    if kind == "switch":
        return True
    if kind.endswith(MANY) and len(taken) == 1:
        return 0.0, float(taken[0])  # the parser reads one number as an upper bound
    if " x " in kind:
        low, high = map(float, taken)
        return low, high
    if kind == "int":
        return int(taken[0])
    return float(taken[0]) if kind == "float" else taken[0]
