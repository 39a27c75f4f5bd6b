"""A cell as a launch of verl's PPO trainer. Pure."""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from backends.verl import ledger, limits
from backends.verl.arguments import (
    ACTOR,
    ADVANTAGES,
    AGGREGATIONS,
    CORRECTION,
    MAIN,
    MODEL,
    NEWEST,
    OFF,
    OPTIMIZER,
    PLAIN_TEMPLATE,
    REWARD,
    ROLLOUT,
    SAMPLER,
    SEPARATE,
    WORKER_ENV,
)
from backends.verl.overrides import write
from orchestrator import scoring
from orchestrator.data import recipe
from orchestrator.records import AttemptPaths, Cell, LaunchPlan
from orchestrator.settings import Cadence, Kl, Loss, Optimizer, Settings

Arguments = Iterator[tuple[str, object]]

DATA, SCORER = "data.json", "reward.py"
PROMPTS_FORMAT = "chat"
MODULE = "orch_verl"
EXTENSION = f"extension/{MODULE}.py"
TOKENS_PER_GPU = 16384
"""Tokens of a micro-batch, unless a single sequence may be longer."""
GPU_MEMORY_UTILIZATION = 0.6


def translate(cell: Cell, place: AttemptPaths) -> LaunchPlan:
    """The launch of a cell. Raises UnsupportedSetting for what verl cannot do."""
    limits.check(cell)
    settings = cell.settings
    version = settings.backend.version or NEWEST
    env = environment(settings, place)
    arguments = dict(_arguments(cell, place, version))
    added: dict[str, str] = {f"{REWARD}.reward_kwargs.rule": settings.data.reward}
    added |= {f"{WORKER_ENV}.{name}": value for name, value in env.items()}
    overrides = [
        *(write(key, value) for key, value in arguments.items()),
        *(write(f"+{key}", value) for key, value in added.items()),
    ]
    files = {DATA: _data_file(settings), SCORER: _text("reward.py")}
    files |= scoring.files(settings.data.reward) | recipe.plan_file(settings.data, PROMPTS_FORMAT)
    if needs_extension(settings):
        files[EXTENSION] = _text("extension.py")
    return LaunchPlan(
        cell_id=cell.id,
        backend="verl",
        version=version,
        argv=("python", "-m", MAIN, *overrides),
        files=files,
        env=env,
        bring_up="ray",
        ledger=ledger.entries(settings, arguments | added),
    )


def needs_extension(settings: Settings) -> bool:
    return "rho_" in settings.kl.estimator or settings.advantage.estimator == "reinforce"


def environment(settings: Settings, place: AttemptPaths) -> dict[str, str]:
    """What every process of the launch must see, the driver's and Ray's alike."""
    env = {"VERL_FILE_LOGGER_PATH": str(place.attempt_dir / metrics_file(settings))}
    if needs_extension(settings):
        env["VERL_USE_EXTERNAL_MODULES"] = MODULE
        env["PYTHONPATH"] = str((place.plan_dir / EXTENSION).parent)
    return env


def metrics_file(settings: Settings) -> str:
    """verl's log says nothing of the cell, so its name says how its numbers are to be read:
    x4: a step is four train steps; c4096: token sums are over 4096; k1: the KL in the reward."""
    tags = [f"x{settings.batch.num_minibatches}"]
    if settings.loss.constant_tokens is not None:
        tags.append(f"c{settings.loss.constant_tokens}")
    if settings.kl.estimator in ("k1", "k1+") and settings.kl.placement != "loss":
        tags.append("k1")
    return f"verl.{'.'.join(tags)}.jsonl"


def _arguments(cell: Cell, place: AttemptPaths, version: str) -> Arguments:
    settings = cell.settings
    yield from _prompts(settings, place.plan_dir)
    yield from _advantage_and_kl(settings.advantage.estimator, settings.kl)
    yield from _loss(settings.loss)
    yield from _optimizer(settings.optimizer, settings)
    yield from _batch(settings)
    yield from _rollout(settings)
    yield from _seeds(settings.seed, version)
    yield from _steps(settings, cell.cadence)
    yield from _place(cell, place)
    yield from _asynchronous(cell) if settings.max_staleness_steps else _synchronous(cell, version)


def _prompts(settings: Settings, plan_dir: Path) -> Arguments:
    data = plan_dir / "data"
    yield f"{MODEL}.path", settings.model.path
    template = PLAIN_TEMPLATE if settings.model.chat_template == "none" else None
    yield f"{MODEL}.custom_chat_template", template
    yield "data.train_files", str(data / "train.parquet")
    yield "data.val_files", str(data / "validation.parquet")
    yield "data.max_prompt_length", settings.data.max_prompt_tokens
    yield "data.filter_overlong_prompts", True
    yield "data.shuffle", True
    yield f"{REWARD}.path", str(plan_dir / SCORER)
    yield f"{REWARD}.name", "compute_score"


def _advantage_and_kl(advantage: str, kl: Kl) -> Arguments:
    estimator, by_std = ADVANTAGES[advantage]
    in_reward = kl.placement in ("reward", "reward_and_loss")
    in_loss = kl.placement in ("loss", "reward_and_loss")
    plain = kl.estimator.rpartition("rho_")[2]
    yield "algorithm.adv_estimator", estimator
    yield "algorithm.norm_adv_by_std_in_grpo", by_std
    yield "critic.enable", False
    yield "algorithm.use_kl_in_reward", in_reward
    if in_reward:
        yield "algorithm.kl_penalty", "kl" if plain == "k1" else plain
        yield "algorithm.kl_ctrl.type", "fixed"
        yield "algorithm.kl_ctrl.kl_coef", kl.beta
    yield f"{ACTOR}.use_kl_loss", in_loss
    if in_loss:
        yield f"{ACTOR}.kl_loss_type", kl.estimator
        yield f"{ACTOR}.kl_loss_coef", kl.beta


def _loss(loss: Loss) -> Arguments:
    clip = loss.clip
    yield f"{ACTOR}.policy_loss.loss_mode", "vanilla"
    yield f"{ACTOR}.loss_agg_mode", AGGREGATIONS[loss.aggregation]
    yield f"{ACTOR}.loss_scale_factor", loss.constant_tokens
    yield f"{ACTOR}.clip_ratio_low", clip.low if clip else 1.0
    yield f"{ACTOR}.clip_ratio_high", clip.high if clip else OFF
    yield f"{ACTOR}.clip_ratio_c", clip.dual if clip and clip.dual else OFF
    yield f"{ACTOR}.entropy_coeff", 0


def _optimizer(optimizer: Optimizer, settings: Settings) -> Arguments:
    yield f"{OPTIMIZER}.lr", optimizer.learning_rate
    yield f"{OPTIMIZER}.weight_decay", optimizer.weight_decay
    yield f"{OPTIMIZER}.betas", [optimizer.beta1, optimizer.beta2]
    yield f"{OPTIMIZER}.override_optimizer_config", {"eps": optimizer.epsilon}
    clip = optimizer.max_grad_norm
    yield f"{OPTIMIZER}.clip_grad", OFF if clip is None else clip
    yield f"{OPTIMIZER}.lr_scheduler_type", optimizer.schedule
    yield f"{OPTIMIZER}.lr_warmup_steps", optimizer.num_warmup_steps // updates_per_tick(settings)


def updates_per_tick(settings: Settings) -> int:
    """Train steps between two moves of verl's learning-rate schedule, which moves once a call of
    update_actor: once a rollout batch when synchronous, once a minibatch in separate_async."""
    return 1 if settings.max_staleness_steps else settings.batch.num_minibatches


def _batch(settings: Settings) -> Arguments:
    longest = settings.data.max_prompt_tokens + settings.rollout.max_response_tokens
    yield "data.train_batch_size", settings.batch.num_prompts
    minibatch = settings.batch.num_prompts // settings.batch.num_minibatches
    yield f"{ACTOR}.ppo_mini_batch_size", minibatch
    yield f"{ACTOR}.ppo_epochs", 1
    yield f"{ACTOR}.shuffle", False
    yield f"{ACTOR}.use_dynamic_bsz", True
    yield f"{ACTOR}.ppo_max_token_len_per_gpu", max(TOKENS_PER_GPU, longest)


def _rollout(settings: Settings) -> Arguments:
    yield f"{ROLLOUT}.name", "vllm"
    yield f"{ROLLOUT}.n", settings.rollout.group_size
    yield "data.max_response_length", settings.rollout.max_response_tokens
    yield f"{ROLLOUT}.temperature", settings.rollout.temperature
    yield f"{ROLLOUT}.top_p", settings.rollout.top_p
    yield f"{ROLLOUT}.top_k", -1
    yield f"{ROLLOUT}.calculate_log_probs", True
    yield f"{ROLLOUT}.tensor_model_parallel_size", 1
    yield f"{ROLLOUT}.gpu_memory_utilization", GPU_MEMORY_UTILIZATION


def _seeds(seed: int, version: str) -> Arguments:
    yield "data.seed", seed
    yield f"{ACTOR}.data_loader_seed", seed
    yield f"{ACTOR}.fsdp_config.seed", seed
    if version == NEWEST:
        yield f"{ROLLOUT}.seed", seed


def _steps(settings: Settings, cadence: Cadence) -> Arguments:
    updates = settings.batch.num_minibatches
    total = settings.num_train_steps // updates
    yield "trainer.total_training_steps", total
    # The loop ends at the earlier of the two bounds; an epoch has at least one step.
    yield "trainer.total_epochs", total
    yield "trainer.save_freq", _every(cadence.checkpoint_every_steps, updates, total)
    yield "trainer.test_freq", _every(cadence.evaluate_every_steps, updates, total)
    yield "trainer.val_before_train", True


def _every(steps: int | None, updates: int, total: int) -> int:
    return total if steps is None else max(1, round(steps / updates))


def _place(cell: Cell, place: AttemptPaths) -> Arguments:
    ref, settings = cell.settings.backend, cell.settings
    checkpoints = place.checkpoints_dir / f"x{settings.batch.num_minibatches}"
    yield "trainer.project_name", f"verl@{ref.version}" if ref.version else "verl"
    yield "trainer.experiment_name", cell.id
    yield "trainer.logger", ["console", "file"]
    yield "trainer.default_local_dir", str(checkpoints)
    yield "trainer.resume_mode", "auto"
    yield "hydra.run.dir", str(place.attempt_dir / "hydra")


def _synchronous(cell: Cell, version: str) -> Arguments:
    yield "trainer.nnodes", cell.resources.num_nodes
    yield "trainer.n_gpus_per_node", cell.resources.gpus_per_node
    if version == NEWEST:
        yield "trainer.use_v1", True
        yield "trainer.v1.trainer_mode", "sync"


def _asynchronous(cell: Cell) -> Arguments:
    updates = cell.settings.batch.num_minibatches
    batches = cell.settings.max_staleness_steps // updates
    split = limits.split_gpus(cell.resources)
    yield "trainer.nnodes", split.train_nodes
    yield "trainer.n_gpus_per_node", split.train_gpus
    yield f"{ROLLOUT}.nnodes", split.rollout_nodes
    yield f"{ROLLOUT}.n_gpus_per_node", split.rollout_gpus
    yield f"{ROLLOUT}.checkpoint_engine.backend", "nccl"
    yield "trainer.use_v1", True
    yield "trainer.v1.trainer_mode", "separate_async"
    yield f"{SEPARATE}.parameter_sync_step", updates
    yield f"{SEPARATE}.num_warmup_batches", batches
    yield f"{SAMPLER}.max_off_policy_threshold", batches + 1
    yield f"{SAMPLER}.max_off_policy_strategy", "wait"
    yield f"{CORRECTION}.bypass_mode", True
    yield f"{ACTOR}.calculate_entropy", True


def _data_file(settings: Settings) -> str:
    """What `data/train.parquet` must be made of."""
    wanted: Mapping[str, object] = settings.data.model_dump()
    return json.dumps(wanted, indent=1, ensure_ascii=False) + "\n"


@cache
def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
