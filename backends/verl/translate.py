"""Translate a cell to a launch of verl's PPO trainer. Pure."""

import json
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path

from backends.verl import extension, rules
from backends.verl.manifest import (
    ACTOR,
    ADVANTAGE,
    AGGREGATION,
    AHEAD,
    BATCH,
    BETAS,
    BY_DEVIATION,
    CLIP_DUAL,
    CLIP_GRADIENT,
    CLIP_HIGH,
    CLIP_LOW,
    CONSTANT_TOKENS,
    CORRECTION,
    DATA,
    ENGINE,
    EPOCHS,
    EXTRA,
    LIMIT,
    LOSS_BETA,
    LOSS_TYPE,
    MANIFEST,
    MINIBATCH,
    MODE,
    MODEL,
    OPTIMIZER,
    PARTS,
    PENALTY,
    PROJECT,
    REWARD,
    REWARD_BETA,
    ROLLOUT,
    RULE,
    SEEDS,
    STEPS,
    STRATEGY,
    TABLES,
    USE_LOSS,
    USE_REWARD,
    WARMUP,
    WORKER_ENV,
)
from backends.verl.overrides import write
from orchestrator import scoring
from orchestrator.data import recipe
from orchestrator.records import AttemptPaths, Cell, LaunchPlan
from orchestrator.settings import Data, Settings

MAIN = "verl.trainer.main_ppo"
SCORER = "reward.py"
PROMPTS_FORMAT = "chat"
MODULE = "orch_verl"
EXTENSION = f"extension/{MODULE}.py"
TOKENS_PER_GPU = 16384
"""Tokens of a micro-batch, unless a single sequence may be longer."""

ORDER = (
    f"{MODEL}.path",
    f"{MODEL}.custom_chat_template",
    "data.train_files",
    "data.val_files",
    "data.max_prompt_length",
    "data.filter_overlong_prompts",
    "data.shuffle",
    f"{REWARD}.path",
    f"{REWARD}.name",
    ADVANTAGE,
    BY_DEVIATION,
    "critic.enable",
    USE_REWARD,
    PENALTY,
    "algorithm.kl_ctrl.type",
    REWARD_BETA,
    USE_LOSS,
    LOSS_TYPE,
    LOSS_BETA,
    f"{ACTOR}.policy_loss.loss_mode",
    AGGREGATION,
    CONSTANT_TOKENS,
    CLIP_LOW,
    CLIP_HIGH,
    CLIP_DUAL,
    f"{ACTOR}.entropy_coeff",
    f"{OPTIMIZER}.lr",
    f"{OPTIMIZER}.weight_decay",
    BETAS,
    EXTRA,
    CLIP_GRADIENT,
    f"{OPTIMIZER}.lr_scheduler_type",
    WARMUP,
    BATCH,
    MINIBATCH,
    f"{ACTOR}.ppo_epochs",
    f"{ACTOR}.shuffle",
    f"{ACTOR}.use_dynamic_bsz",
    f"{ACTOR}.ppo_max_token_len_per_gpu",
    f"{ROLLOUT}.name",
    f"{ROLLOUT}.n",
    "data.max_response_length",
    f"{ROLLOUT}.temperature",
    f"{ROLLOUT}.top_p",
    f"{ROLLOUT}.top_k",
    f"{ROLLOUT}.calculate_log_probs",
    f"{ROLLOUT}.tensor_model_parallel_size",
    f"{ROLLOUT}.gpu_memory_utilization",
    "data.seed",
    *SEEDS,
    f"{ROLLOUT}.seed",
    STEPS,
    EPOCHS,
    "trainer.save_freq",
    "trainer.test_freq",
    "trainer.val_before_train",
    PROJECT,
    "trainer.experiment_name",
    "trainer.logger",
    "trainer.default_local_dir",
    "trainer.resume_mode",
    "hydra.run.dir",
    "trainer.nnodes",
    "trainer.n_gpus_per_node",
    f"{ROLLOUT}.nnodes",
    f"{ROLLOUT}.n_gpus_per_node",
    ENGINE,
    "trainer.use_v1",
    MODE,
    PARTS,
    AHEAD,
    LIMIT,
    STRATEGY,
    f"{CORRECTION}.bypass_mode",
    f"{ACTOR}.calculate_entropy",
    RULE,
    f"{WORKER_ENV}.VERL_FILE_LOGGER_PATH",
    f"{WORKER_ENV}.VERL_USE_EXTERNAL_MODULES",
    f"{WORKER_ENV}.PYTHONPATH",
)
"""The order of the arguments on a command line, which people compare."""


def translate(cell: Cell, place: AttemptPaths) -> LaunchPlan:
    """Return the launch of a cell. Raise UnsupportedSetting for what verl cannot do."""
    settings = cell.settings
    carried = MANIFEST.carry(settings)
    rules.check(cell)
    version = MANIFEST.version_of(settings)
    env = environment(settings, place)
    arguments = MANIFEST.assignments(settings, carried) | _surroundings(cell, place)
    arguments |= {f"{WORKER_ENV}.{name}": value for name, value in env.items()}
    files = {DATA: _data_file(settings.data), SCORER: _text("reward.py")}
    files |= scoring.files(settings.data.reward) | recipe.plan_file(settings.data, PROMPTS_FORMAT)
    if needs_extension(settings):
        files[EXTENSION] = _text("extension.py")
    return LaunchPlan(
        cell_id=cell.id,
        backend="verl",
        version=version,
        argv=("python", "-m", MAIN, *_overrides(arguments, version)),
        files=files,
        env=env,
        bring_up="ray",
        ledger=MANIFEST.ledger(settings, arguments | {DATA: settings.data.model_dump()}, carried),
    )


def _overrides(arguments: Mapping[str, object], version: str) -> list[str]:
    """Return Hydra's overrides, with a `+` before keys that the release's configuration lacks."""
    keys = TABLES[version].keys
    return [
        write(key if key in keys or key.startswith("hydra.") else f"+{key}", arguments[key])
        for key in ORDER
        if key in arguments
    ]


def needs_extension(settings: Settings) -> bool:
    """Return True if a cell needs something that only extension.py adds to verl."""
    return (
        settings.kl.estimator in extension.WEIGHTED or settings.advantage.estimator == "reinforce"
    )


def environment(settings: Settings, place: AttemptPaths) -> dict[str, str]:
    """Return the environment variables of the driver and of all Ray workers."""
    env = {"VERL_FILE_LOGGER_PATH": str(place.attempt_dir / metrics_file(settings))}
    if needs_extension(settings):
        env["VERL_USE_EXTERNAL_MODULES"] = MODULE
        env["PYTHONPATH"] = str((place.plan_dir / EXTENSION).parent)
    return env


def metrics_file(settings: Settings) -> str:
    """Return the name of verl's log.

    The name says how to read its numbers, because the log does not.

    x4: a step is four train steps. c4096: token sums are divided by 4096. k1: k1 is in the reward.
    """
    tags = [f"x{settings.batch.num_minibatches}"]
    if settings.loss.constant_tokens is not None:
        tags.append(f"c{settings.loss.constant_tokens}")
    if settings.kl.estimator in ("k1", "k1+") and settings.kl.placement != "loss":
        tags.append("k1")
    return f"verl.{'.'.join(tags)}.jsonl"


def _surroundings(cell: Cell, place: AttemptPaths) -> dict[str, object]:
    """Return the arguments that do not change the result: paths, GPUs, memory, cadence, names."""
    settings, cadence, data = cell.settings, cell.cadence, place.plan_dir / "data"
    updates = settings.batch.num_minibatches
    total = settings.num_train_steps // updates
    longest = settings.data.max_prompt_tokens + settings.rollout.max_response_tokens
    return {
        "data.train_files": str(data / "train.parquet"),
        "data.val_files": str(data / "validation.parquet"),
        f"{REWARD}.path": str(place.plan_dir / SCORER),
        f"{REWARD}.name": "compute_score",
        f"{ACTOR}.ppo_max_token_len_per_gpu": max(TOKENS_PER_GPU, longest),
        "trainer.save_freq": _frequency(cadence.checkpoint_every_steps, updates, total),
        "trainer.test_freq": _frequency(cadence.evaluate_every_steps, updates, total),
        "trainer.experiment_name": cell.id,
        "trainer.logger": ["console", "file"],
        "trainer.default_local_dir": str(place.checkpoints_dir / f"x{updates}"),
        "hydra.run.dir": str(place.attempt_dir / "hydra"),
        **_gpus(cell),
    }


def _frequency(steps: int | None, updates: int, total: int) -> int:
    """Return a number of train steps as a number of rollout batches; None: all of them."""
    return total if steps is None else max(1, round(steps / updates))


def _gpus(cell: Cell) -> dict[str, object]:
    if not cell.settings.max_staleness_steps:
        return {
            "trainer.nnodes": cell.resources.num_nodes,
            "trainer.n_gpus_per_node": cell.resources.gpus_per_node,
        }
    split = rules.split_gpus(cell.resources)
    return {
        "trainer.nnodes": split.train_nodes,
        "trainer.n_gpus_per_node": split.train_gpus,
        f"{ROLLOUT}.nnodes": split.rollout_nodes,
        f"{ROLLOUT}.n_gpus_per_node": split.rollout_gpus,
    }


@lru_cache(maxsize=256)
def _data_file(data: Data) -> str:
    """Return the file that describes the content of `data/train.parquet`."""
    return json.dumps(data.model_dump(), indent=1, ensure_ascii=False) + "\n"


@cache
def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
