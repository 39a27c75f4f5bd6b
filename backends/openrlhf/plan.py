"""A cell as a launch of openrlhf.cli.train_ppo_ray."""

import json
from functools import cache
from pathlib import Path

from backends.openrlhf import check, ledger
from backends.openrlhf.check import ADVANTAGES, AGGREGATIONS, SCHEDULES, UNBIASED
from backends.openrlhf.flags import FLAT, Options, argv
from backends.openrlhf.topology import Topology, topology
from orchestrator import scoring
from orchestrator.data import recipe
from orchestrator.records import AttemptPaths, Cell, LaunchPlan
from orchestrator.settings import Settings

NEEDS, REWARD, PROMPTS = "needs.json", "reward.py", "data/train.jsonl"
PROMPTS_FORMAT = "labelled"
COLUMNS = {"prompt": "prompt", "label": "label"}
REWARD_CLIP = (-1000.0, 1000.0)
"""Wide enough never to act; the default of 10 cuts standardised rewards of groups over 101."""
NO_CLIP = (float("inf"), float("inf"))
STEPS_DIR = "global_step-x{}"
"""Directory whose `global_step<n>` are n rollout batches of so many train steps each."""
FINAL_DIR = "step-{}"


def translate(cell: Cell, place: AttemptPaths) -> LaunchPlan:
    """The launch of a cell. Raises UnsupportedSetting for what the release cannot run."""
    settings = cell.settings
    version = check.version_of(settings.backend)
    top = topology(settings, cell.resources)
    if version == FLAT and settings.loss.aggregation == "sequence_mean":
        top = top._replace(micro_train=1)
    check.check(settings, version, top, place)
    options: Options = {
        **_data(settings, place),
        **_rollout(settings, top),
        **_objective(settings, version),
        **_optimizer(settings, version),
        **_training(settings, top),
        **_machines(settings, top),
        **_output(cell, place),
    }
    return LaunchPlan(
        cell_id=cell.id,
        backend="openrlhf",
        version=version,
        argv=argv(options, version),
        files={
            NEEDS: needs(settings, version),
            REWARD: reward_file(),
            **scoring.files(settings.data.reward),
            **recipe.plan_file(settings.data, PROMPTS_FORMAT),
        },
        env={"RAY_ADDRESS": "auto"} if cell.resources.num_nodes > 1 else {},
        ledger=ledger.entries(settings, options, version) + ledger.of_cadence(cell.cadence),
        bring_up="ray",
    )


def _data(settings: Settings, place: AttemptPaths) -> Options:
    prompts = [str(place.plan_dir / PROMPTS)] * check.num_copies(settings)
    template: Options = (
        {"data.apply_chat_template": True} if settings.model.chat_template == "default" else {}
    )
    return {
        "actor.model_name_or_path": settings.model.path,
        "data.prompt_dataset": ",".join(prompts),
        "data.max_samples": check.num_rows(settings),
        "data.input_key": COLUMNS["prompt"],
        "data.label_key": COLUMNS["label"],
        **template,
        "data.max_len": settings.data.max_prompt_tokens + settings.rollout.max_response_tokens,
        "reward.remote_url": str(place.plan_dir / REWARD),
        "reward.clip_range": REWARD_CLIP,
    }


def _rollout(settings: Settings, top: Topology) -> Options:
    return {
        "rollout.batch_size": settings.batch.num_prompts,
        "rollout.n_samples_per_prompt": settings.rollout.group_size,
        "rollout.max_new_tokens": settings.rollout.max_response_tokens,
        "rollout.temperature": settings.rollout.temperature,
        "rollout.top_p": settings.rollout.top_p,
        "rollout.micro_batch_size": top.micro_rollout,
    }


def _objective(settings: Settings, version: str) -> Options:
    kl, loss = settings.kl, settings.loss
    options: Options = {
        "algo.advantage.estimator": ADVANTAGES[settings.advantage.estimator],
        "algo.kl.init_coef": kl.beta,
    }
    if kl.placement is not None:
        options["algo.kl.estimator"] = UNBIASED.get(kl.estimator, kl.estimator)
    if kl.placement == "loss":
        options["algo.kl.use_loss"] = True
    if kl.estimator in UNBIASED:
        options["algo.kl.unbiased_gradient"] = True
    if version != FLAT:
        options["actor.loss_agg_mode"] = AGGREGATIONS[loss.aggregation]
    options["actor.eps_clip_low_high"] = (
        NO_CLIP if loss.clip is None else (loss.clip.low, loss.clip.high)
    )
    if loss.clip is not None and loss.clip.dual is not None:
        options["actor.dual_clip"] = loss.clip.dual
    options["actor.entropy_coef"] = 0.0
    return options


def _optimizer(settings: Settings, version: str) -> Options:
    optimizer, steps = settings.optimizer, settings.num_train_steps
    warmup = optimizer.num_warmup_steps
    epsilon: Options = {} if version == FLAT else {"actor.adam.eps": optimizer.epsilon}
    return {
        "actor.adam.lr": optimizer.learning_rate,
        "actor.adam.betas": (optimizer.beta1, optimizer.beta2),
        **epsilon,
        "actor.adam.weight_decay": optimizer.weight_decay,
        "actor.max_norm": optimizer.max_grad_norm or 0.0,
        "actor.lr_scheduler": SCHEDULES[optimizer.schedule],
        # The library rounds steps x ratio up; half a step below keeps rounding from adding one.
        "actor.lr_warmup_ratio": (warmup - 0.5) / steps if warmup else 0.0,
    }


def _training(settings: Settings, top: Topology) -> Options:
    batch = settings.batch
    queue = settings.max_staleness_steps // batch.num_minibatches
    stale: Options = {"train.async_enable": True, "train.async_queue_size": queue} if queue else {}
    return {
        "train.batch_size": batch.num_prompts
        * settings.rollout.group_size
        // batch.num_minibatches,
        "train.micro_batch_size": top.micro_train,
        "train.num_episodes": 1,
        "train.max_epochs": 1,
        "train.seed": settings.seed,
        **stale,
    }


def _machines(settings: Settings, top: Topology) -> Options:
    where: Options = {
        "actor.num_nodes": top.num_nodes,
        "actor.num_gpus_per_node": top.gpus_per_node,
        "ref.num_nodes": top.num_nodes,
        "ref.num_gpus_per_node": top.gpus_per_node,
        "vllm.num_engines": top.num_engines,
        "vllm.tensor_parallel_size": 1,
        "ds.zero_stage": 3,
        "ds.param_dtype": "bf16",
        "ds.packing_samples": True,
        "actor.gradient_checkpointing_enable": True,
    }
    if settings.max_staleness_steps:
        where |= {"train.colocate_actor_ref": True, "vllm.gpu_memory_utilization": 0.9}
    else:
        where |= {
            "train.colocate_all": True,
            "vllm.enable_sleep": True,
            "ds.enable_sleep": True,
            "vllm.gpu_memory_utilization": 0.6,
        }
    return where


def _output(cell: Cell, place: AttemptPaths) -> Options:
    minibatches = cell.settings.batch.num_minibatches
    every = cell.cadence.checkpoint_every_steps
    saving: Options = (
        {}
        if every is None
        else {"ckpt.save_steps": max(1, round(every / minibatches)), "ckpt.save_hf": True}
    )
    return {
        "ckpt.path": str(place.checkpoints_dir / STEPS_DIR.format(minibatches)),
        "ckpt.output_dir": str(
            place.checkpoints_dir / FINAL_DIR.format(cell.settings.num_train_steps)
        ),
        **saving,
        "ckpt.max_num": 2,
        "ckpt.load_enable": True,
        "logger.tensorboard_dir": str(place.attempt_dir / "tensorboard"),
        "logger.wandb.run_name": STEPS_DIR.format(minibatches),
    }


def needs(settings: Settings, version: str) -> str:
    """What a launch needs beside its flags: the release, the prompts, and in `asked` the settings
    that several cells spell alike in flags."""
    data = settings.data
    asked: dict[str, object] = {
        "backend.version": settings.backend.version,
        "model.name": settings.model.name,
    }
    if settings.kl.estimator in UNBIASED:
        asked["kl.estimator"] = settings.kl.estimator
    return _json(
        {
            "library": f"openrlhf=={version}",
            "prompts": {
                "file": PROMPTS,
                "columns": COLUMNS,
                "name": data.name,
                "path": data.path,
                "split": data.split,
                "num_prompts": data.num_prompts,
                "instruction": data.instruction,
                "reward": data.reward,
            },
            "asked": asked,
        }
    )


def _json(plain: object) -> str:
    return json.dumps(plain, indent=1, ensure_ascii=False) + "\n"


@cache
def reward_file() -> str:
    """The text of the reward function that the samplers load."""
    return (Path(__file__).parent / "rewards" / "reward.py").read_text(encoding="utf-8")
