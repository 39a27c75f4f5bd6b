"""Translate a cell to a launch of TRL's script `grpo` or `rloo`, through orch_trl.py; or refuse it.

The manifest refuses values of single fields. `rank_layout` and `check` refuse combinations that TRL
cannot train as asked: machines, batches, constants.
"""

import math
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import yaml

from backends.trl.manifest import (
    CHAT,
    ESTIMATOR,
    LUSPO_SUMS,
    MANIFEST,
    PLACEMENT,
    PROCESSES,
    PROMPTS,
    SCRIPT,
    SHAPES,
    WEIGHS,
    script_of,
)
from backends.trl.options import script_table
from orchestrator.library import loggers, quiet_kl
from orchestrator.library.key_tables import is_since
from orchestrator.library.manifest import (
    ManifestError,
    Values,
    refuse_if,
    refuse_rest,
    rollouts_each,
    validation,
)
from orchestrator.library.memory import longest_sequence, micro_batch
from orchestrator.library.needs import NEEDS, needs, shared_files, text_of
from orchestrator.records import AttemptPaths, Cell, LaunchPlan, LedgerEntry
from orchestrator.settings import Cadence, Settings

PROMPTS_FORMAT = "labelled"
PROGRAM, REWARD_FILE, METRICS = "orch_trl.py", "orch_reward.py", "trl.jsonl"
KL = "orch_trl_kl.py"
EVALUATES = "eval_steps"
CONFIG = "{}.yaml"
MODEL_LINK = "model"
"""Name of the link beside a plan to a policy shipped with orch."""

Options = dict[str, object]
LARGEST_ON_GPU, LARGEST_ON_CPU = 8, 512
"""Most rollouts in one forward pass of a process. Gradients of more rollouts are accumulated."""
MOST_TOKENS = 16384
"""Most tokens in one forward pass on a GPU."""
ENGINE_MEMORY = 0.4
"""The share of a GPU's memory that vLLM takes while it samples, beside the trainer's shards; TRL's
default of 0.3 is too little for a model of 14 B."""
SHARDED = (
    *("--use_fsdp", "--fsdp_version", "2", "--fsdp_reshard_after_forward", "true"),
    *("--fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP"),
    *("--fsdp_state_dict_type", "FULL_STATE_DICT"),
    # TRL shards the reference policy without the weights of the first process, so that the others
    # would keep what is in their memory (models/utils.py, prepare_fsdp): each process reads them.
    *("--fsdp_cpu_ram_efficient_loading", "false"),
)
"""What `trl/accelerate_configs/fsdp2.yaml` says, as arguments of accelerate."""


class ProcessShares(NamedTuple):
    """The parts of a batch for each process."""

    processes: int
    """One for each GPU; one on a machine without GPUs."""
    on_cpu: bool
    per_device: int
    """Rollouts in one forward pass of a process."""
    accumulation: int
    """Forward passes of a process in one train step."""


def translate(cell: Cell, paths: AttemptPaths) -> LaunchPlan:
    """Return the launch of a cell. Raise UnsupportedSetting for a cell the release cannot train."""
    settings = cell.settings
    refuse_if(
        cell,
        settings.loss.correction is not None and not samples_by_engine(cell),
        "loss.correction",
        "none, where the policy itself samples",
        "TRL weighs against vLLM, which samples where the cell has GPUs: leave it out.",
        settings.loss.correction and settings.loss.correction.kind,
    )
    version, script = MANIFEST.version_of(settings), script_of(settings)
    carried = MANIFEST.carry(settings)
    layout = rank_layout(cell)
    check(cell, version)
    needed = needs(
        settings,
        version,
        *("backend.version", "model.name", "model.path", "precision.checkpoint"),
        # else it is read as ppo with loss.ratio_level
        *(["loss.policy"] if settings.loss.policy == "gspo" else []),
    )
    options = {
        **MANIFEST.assignments(settings, carried),
        **_files(settings, paths),
        **_machine(settings, layout),
        **_engine(cell),
        **_validates(cell, layout),
        **_output(cell, paths),
        **({"report_to": list(cell.loggers), "run_name": cell.slug} if cell.loggers else {}),
    }
    table = script_table(script, version)
    options, own = MANIFEST.finished(settings, cell.system, options, table=table)
    for key, value in options.items():
        if why := table.objection(key, value):
            raise ManifestError(f"trl: {why}")
    chat = settings.model.chat_template == "default"
    kl = shipped_kl(settings)
    launch: Values = {
        **options,
        **kl,
        NEEDS: needed,
        SCRIPT: script,
        CHAT: chat,
        PROCESSES: layout.processes,
    }
    return LaunchPlan(
        cell_id=cell.id,
        backend="trl",
        version=version,
        argv=_argv(cell, paths, layout, chat=chat, kl=kl),
        files={
            CONFIG.format(script): yaml.safe_dump(
                dict(options), allow_unicode=True, width=math.inf
            ),
            **shipped(bool(kl)),
            **shared_files(cell, PROMPTS_FORMAT, needed),
        },
        env={
            # From the folder of the plan, where a launch starts: datasets makes one file name of
            # the path, and a whole path may be too long for one.
            "HF_DATASETS_CACHE": os.path.relpath(paths.attempt_dir / "datasets", paths.plan_dir),
            **loggers.variables(cell, paths),
        },
        ledger=MANIFEST.ledger(settings, launch, carried) + own + _of_cadence(cell),
    )


def shipped_kl(settings: Settings) -> dict[str, str]:
    """Return estimator and placement of a KL that orch_trl_kl.py adds to TRL; {} for TRL's own."""
    kl = settings.kl
    if kl.estimator not in quiet_kl.ESTIMATORS or kl.placement is None:
        return {}
    return {ESTIMATOR: kl.estimator, PLACEMENT: kl.placement}


def is_sharded(settings: Settings, processes: int) -> bool:
    """Return True if a launch shards weights, gradients and optimizer over its processes by FSDP2.

    A shipped KL calls the head of the model outside its forward pass, TRL moves a reference policy
    parameter by parameter, and merges adapters for vLLM in place, which its source doubts under
    FSDP (vllm_generation.py): these launches keep the whole model on each GPU.
    """
    whole = bool(shipped_kl(settings)) or moves_reference(settings) or settings.lora is not None
    return processes > 1 and not whole


def moves_reference(settings: Settings) -> bool:
    """Return True if the reference policy does not stay the model before training."""
    kl = settings.kl
    return kl.reference is not None or kl.reset_reference_every_steps is not None


def samples_by_engine(cell: Cell) -> bool:
    """Return True if vLLM samples. Without a GPU the policy itself does."""
    return cell.resources.gpus_per_node > 0


def _argv(
    cell: Cell,
    paths: AttemptPaths,
    layout: ProcessShares,
    *,
    chat: bool,
    kl: Mapping[str, str],
) -> tuple[str, ...]:
    program, script = str(paths.plan_dir / PROGRAM), script_of(cell.settings)
    start = ["python3", program]
    if not layout.on_cpu:
        passes = "no" if cell.settings.precision.training == "fp32" else "bf16"
        start = ["accelerate", "launch", "--num_processes", str(layout.processes)]
        start += ["--num_machines", "1", "--mixed_precision", passes, "--dynamo_backend", "no"]
        if is_sharded(cell.settings, layout.processes):
            start += [*SHARDED, "--fsdp_offload_params", str(bool(cell.system.offload)).lower()]
        elif layout.processes > 1:
            start.append("--multi_gpu")
        start.append(program)
    config = str(paths.plan_dir / CONFIG.format(script))
    metrics = str(paths.attempt_dir / METRICS)
    arguments = [word for name, value in kl.items() for word in (flag(name), value)]
    rest = (*["--chat"] * chat, *arguments)
    return (*start, script, "--config", config, "--metrics", metrics, *rest)


def flag(name: str) -> str:
    """Return the argument of orch_trl.py for a name in capitals of the manifest."""
    return f"--{name.lower().replace('_', '-')}"


def model_path(path: str) -> str:
    """Return the model path for TRL. For a policy shipped with orch it is the link MODEL_LINK.

    The launcher makes that link, and starts the program in the folder of the plan.
    """
    return MODEL_LINK if ":" in path else path


def _files(settings: Settings, paths: AttemptPaths) -> Options:
    return {
        "model_name_or_path": model_path(settings.model.path),
        # the folder's train.jsonl and validation.jsonl are its splits
        "dataset_name": str((paths.plan_dir / PROMPTS).parent),
        "dataset_train_split": "train",
        "dataset_test_split": "validation",
    }


def _machine(settings: Settings, layout: ProcessShares) -> Options:
    return {
        "use_cpu": layout.on_cpu,
        "gradient_checkpointing": not layout.on_cpu,
        "per_device_train_batch_size": layout.per_device,
        "gradient_accumulation_steps": layout.accumulation,
        "steps_per_generation": layout.accumulation * settings.batch.num_minibatches,
    }


def _engine(cell: Cell) -> Options:
    """Return the options of the engine that samples: vLLM on the trainer's GPUs, or none."""
    settings = cell.settings
    if not samples_by_engine(cell):
        return {"use_vllm": False}
    by_grpo = script_of(settings) == "grpo"
    return {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": ENGINE_MEMORY,
        "vllm_tensor_parallel_size": 1,
        "vllm_enable_sleep_mode": True,
        # TRL cuts no prompt: room for one that is twice as long as the spec says
        "vllm_max_model_length": 2 * settings.data.max_prompt_tokens
        + settings.rollout.max_response_tokens,
        **({WEIGHS: False} if by_grpo and settings.loss.correction is None else {}),
    }


def _validates(cell: Cell, layout: ProcessShares) -> Options:
    """Return the options of the evaluation while it trains: all validation prompts, sampled once.

    Its forward passes keep no activations, so they fit where those of training do.
    """
    return {
        "eval_strategy": "steps",
        "eval_on_start": True,
        EVALUATES: cell.cadence.evaluate_every_steps or cell.settings.num_train_steps,
        "num_generations_eval": 1,
        "per_device_eval_batch_size": layout.per_device,
    }


def _output(cell: Cell, paths: AttemptPaths) -> Options:
    return {
        "output_dir": str(paths.checkpoints_dir),
        "save_steps": save_steps(cell.cadence, cell.settings),
    }


def save_steps(cadence: Cadence, settings: Settings) -> int:
    """Return the train steps between checkpoints: whole rollout batches, and whole periods of the
    reference policy. The last train step is always saved."""
    every = cadence.checkpoint_every_steps
    if every is None:
        return settings.num_train_steps
    unit = math.lcm(settings.batch.num_minibatches, settings.kl.reset_reference_every_steps or 1)
    return max(1, round(every / unit)) * unit


def _of_cadence(cell: Cell) -> tuple[LedgerEntry, ...]:
    """Return the entries of the cadence.

    TRL evaluates where eval_steps divides the train step (transformers, DefaultFlowCallback), and
    averages what its batches average (trl/trainer/grpo_trainer.py, log, 1.16.0).
    """
    every, settings = cell.cadence.checkpoint_every_steps, cell.settings
    saved = save_steps(cell.cadence, settings)
    validates = cell.cadence.evaluate_every_steps or settings.num_train_steps
    last = "not after the last step; " if settings.num_train_steps % validates else ""
    rounded = every is not None and every != saved
    return (
        LedgerEntry(
            field="cadence.checkpoint_every_steps",
            status="approximated" if rounded else "exact",
            key="save_steps",
            value=str(saved),
            note="rounded to whole rollout batches and periods of the reference policy"
            if rounded
            else "the last train step is saved in any case",
        ),
        validation(
            cell,
            EVALUATES,
            validates,
            validates,
            f"{last}the mean of the means of its batches, of which the last repeats prompts until "
            "it is full",
        ),
    )


def shipped(kl: bool) -> Mapping[str, str]:
    """Return name -> text of orch's programs in a launch. `kl`: orch adds its KL to TRL."""
    folder = Path(__file__).parent / "launch"
    names = (PROGRAM, REWARD_FILE, *[KL] * kl)
    texts = {name: text_of(folder, name) for name in names}
    if kl:
        texts[f"{quiet_kl.MODULE}.py"] = quiet_kl.source()
    return texts


def rank_layout(cell: Cell) -> ProcessShares:
    """Return the parts of a batch. Raise UnsupportedSetting if it does not divide."""
    refuse, settings = partial(refuse_if, cell), cell.settings
    refuse(
        cell.resources.num_nodes > 1,
        "resources.num_nodes",
        "1",
        "orch starts TRL on one node only: set resources.num_nodes=1, and "
        "resources.gpus_per_node to no more than a node of the site has.",
    )
    on_cpu = cell.resources.gpus_per_node == 0
    processes = max(cell.resources.gpus_per_node, 1)
    share = rollouts_each(cell, processes)
    micro = MANIFEST.micro_batch(settings, cell.system, "per_device_train_batch_size")
    why = f"A process has {share} rollouts of a minibatch and takes equal parts"
    refuse_rest(
        cell,
        "system.micro_batch",
        share,
        micro,
        why,
    )
    why = "vLLM's engines share the trainer's GPUs equally"
    refuse_rest(
        cell,
        "system.tensor_parallel",
        processes,
        cell.system.tensor_parallel,
        why,
    )
    refuse(
        cell.system.offload and not is_sharded(settings, processes),
        "system.offload",
        "false",
        "Only a sharded launch offloads: more than one GPU, a KL of TRL's own, and a reference "
        "policy that does not move.",
    )
    bounds = (share, LARGEST_ON_CPU) if on_cpu else (MOST_TOKENS, LARGEST_ON_GPU)
    tokens = 1 if on_cpu else longest_sequence(settings)
    per_device = micro or micro_batch(share, tokens, *bounds)
    return ProcessShares(processes, on_cpu, per_device, share // per_device)


def check(cell: Cell, version: str) -> None:
    """Raise UnsupportedSetting for the first rule that a cell breaks."""
    settings, loss, kl = cell.settings, cell.settings.loss, cell.settings.kl
    refuse, longest = partial(refuse_if, cell), settings.rollout.max_response_tokens
    known, batch = settings.data.num_prompts, settings.batch.num_prompts
    if settings.lora is not None:
        why = (
            "TRL's reference policy is then the model without its adapter, which cannot move"
            if moves_reference(settings)
            else f"orch's {kl.estimator} in TRL wants a reference policy of its own"
        )
        wants_own = moves_reference(settings) or shipped_kl(settings)
        refuse(wants_own, "lora.rank", "no lora", f"{why}: leave one of them out.")
    if script_of(settings) == "rloo":
        refuse(
            loss.constant_tokens != 1,
            "loss.constant_tokens",
            "1",
            "RLOOTrainer sums over a response's tokens and averages responses: "
            "loss.constant_tokens=1.",
        )
    elif loss.constant_tokens not in (None, longest):
        refuse(
            not is_since(version, LUSPO_SUMS),
            "loss.constant_tokens",
            f"rollout.max_response_tokens ({longest})",
            f"TRL {version} divides by max_completion_length (loss_type dr_grpo); its luspo "
            "weighs tokens by the length of their response, padding included.",
        )
        refuse(
            loss.constant_tokens != 1,
            "loss.constant_tokens",
            f"1 and rollout.max_response_tokens ({longest})",
            "TRL divides by max_completion_length (loss_type dr_grpo) or by nothing (luspo).",
        )
    if loss.clip is not None and loss.clip.dual is not None:
        refuse(
            loss.clip.dual <= 1 + loss.clip.high,
            "loss.clip.dual",
            f"numbers above 1 + loss.clip.high ({1 + loss.clip.high:g})",
            "TRL's `delta` bounds the ratio, which is dual clip only beyond the ratio's own clip.",
        )
    refuse(
        loss.correction is not None and loss.policy == "vespo",
        "loss.correction",
        "none, where loss.policy is vespo",
        "TRL's vespo takes the weights against vLLM into the response's own weight, which is "
        "another correction: leave it out.",
        loss.correction and loss.correction.kind,
    )
    refuse(
        known is not None and known < batch,
        "batch.num_prompts",
        f"at most data.num_prompts ({known})",
        "TRL leaves out what makes no whole batch, which would be every prompt.",
    )
    no_reference = "With beta 0 no reference policy is loaded: leave it out, or give kl.beta."
    refuse(
        kl.reset_reference_every_steps is not None and kl.beta == 0,
        "kl.reset_reference_every_steps",
        "null, where kl.beta is 0",
        no_reference,
    )
    level = "sequence_mean" if loss.policy == "gspo" else loss.ratio_level
    refuse(
        kl.estimator == "rho_k3" and kl.ratio_level != level,
        "kl.ratio_level",
        f"{level}, the ratio of the policy loss",
        "TRL has one option for the ratio of the policy loss and of the KL.",
    )
    refuse(
        kl.placement in ("loss", "reward_and_loss")
        and loss.policy in SHAPES
        and shipped_kl(settings),
        "loss.policy",
        "ppo, gspo",
        f"orch's {kl.estimator} in the loss is reduced by a loss whose value of a "
        f"token is its advantage, and {loss.policy}'s is not: set loss.policy=ppo, or "
        "kl.estimator=k3.",
    )
    refuse(
        kl.reference is not None and kl.beta == 0,
        "kl.reference.kind",
        "no kl.reference, where kl.beta is 0",
        no_reference,
    )
