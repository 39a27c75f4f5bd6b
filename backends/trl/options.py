"""The options of TRL's scripts, release by release, as the library's own dataclasses have them.

`trl grpo` and `trl rloo` take flat names, on the command line or in a YAML file: those of their
ScriptArguments, GRPOConfig or RLOOConfig, ModelConfig and DatasetMixtureConfig. options.json holds
them as `<script>.<name>` for the releases that orch drives; history.json those of GRPOConfig and
RLOOConfig alone, which are TRL's own, for every release since GRPOTrainer's first.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from orchestrator.library import key_tables
from orchestrator.library.key_tables import Option, Options, driven, load_options
from orchestrator.library.manifest import ReleaseTable, Values

Script = Literal["grpo", "rloo"]
SCRIPTS: tuple[Script, ...] = get_args(Script)

OLD_NAMES = {
    "kl_coef": "beta",
    "rloo_k": "num_generations",
    "num_ppo_epochs": "num_iterations",
    "response_length": "max_completion_length",
    "cliprange": "epsilon",
    "normalize_advantage": "normalize_advantages",
}
"""RLOOConfig's names up to 0.21; 0.22 to 0.24 take both."""
BIAS_CORRECTED = "1.10.0"
"""The release that turned `use_bias_correction_kl` on by default."""


@cache
def _releases() -> Mapping[str, Options]:
    return load_options(Path(__file__).with_name("options.json"))


VERSIONS = driven(Path(__file__).with_name("options.json"))
"""The releases that orch drives, newest first."""


@cache
def options(script: Script, version: str) -> Options:
    """Return the options of one script of a release."""
    return _of(script, _releases()[version])


def _of(script: Script, every: Options) -> Options:
    named = ((key.partition("."), option) for key, option in every.items())
    return {name: option for (owner, _, name), option in named if owner == script}


@cache
def defaults(script: Script, version: str) -> Values:
    """Return option -> its value in a launch that leaves it out."""
    return {name: option.default for name, option in options(script, version).items()}


@cache
def script_table(script: Script, version: str) -> ReleaseTable:
    """Return the options that one script of a release accepts."""
    return key_tables.release_table(f"{version} ({script})", options(script, version))


@cache
def release_table(version: str) -> ReleaseTable:
    """Return the options that some script of a release accepts; those of `grpo` come first."""
    both = {**options("rloo", version), **options("grpo", version)}
    return key_tables.release_table(version, both)


HISTORY = Path(__file__).with_name("history.json")
_OLDER = """
adafactor dispatch_batches evaluation_strategy fp16_backend fp16_opt_level group_by_length
half_precision_backend include_inputs_for_metrics include_tokens_per_second jit_mode_eval
logging_dir mp_parameters no_cuda overwrite_output_dir past_index per_gpu_eval_batch_size
per_gpu_train_batch_size push_to_hub_model_id push_to_hub_organization push_to_hub_token ray_scope
save_safetensors split_batches torchdynamo tp_size tpu_metrics_debug tpu_num_cores torch_dtype
use_ipex use_legacy_prediction_loop use_mps_device warmup_ratio
"""
OLDER_ARGUMENTS = frozenset(_OLDER.split())
"""Options of TrainingArguments in transformers 4.46 and 4.51, and of ModelConfig, that are gone in
the releases that orch drives."""
_REDECLARED = """
bf16 gradient_accumulation_steps gradient_checkpointing learning_rate logging_steps
lr_scheduler_kwargs per_device_train_batch_size push_to_hub remove_unused_columns run_name
torch_empty_cache_steps trust_remote_code use_liger_kernel
"""
REDECLARED = frozenset(_REDECLARED.split())
"""Options that TRL's classes declare in some releases and inherit from transformers'
TrainingArguments in others, so that they do not identify a release."""


@cache
def own_options(script: Script) -> Mapping[str, Options]:
    """Return release -> options of GRPOConfig or RLOOConfig, for releases with the class, oldest
    first.
    """
    releases = load_options(HISTORY).items()
    return {version: own for version, every in releases if (own := _of(script, every))}


@cache
def inherited(script: Script) -> Options:
    """Return the options that a script inherits: those of transformers and of the script."""
    own = {key for options_ in own_options(script).values() for key in options_} - REDECLARED
    every = {
        key: option for version in VERSIONS for key, option in options(script, version).items()
    }
    return {key: option for key, option in every.items() if key not in own}


@cache
def class_table(script: Script, version: str) -> ReleaseTable:
    """Return the options of a script in any release."""
    known = {**inherited(script), **own_options(script)[version]}
    older = {key: Option("str") for key in OLDER_ARGUMENTS}
    return key_tables.release_table(version, {**older, **known})
